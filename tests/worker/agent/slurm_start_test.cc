#include "worker/agent/slurm_start.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace millrace {
namespace {

// The variables that srun -N4 --ntasks=7 sets in its last process but one.
std::map<std::string, std::string> ExampleVariables() {
  return {{"SLURM_STEP_NUM_TASKS", "7"},
          {"SLURM_PROCID", "5"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "2"},
          {"SLURM_JOB_ID", "4711"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
          {"SLURM_STEP_NODELIST", "node[007-009,12]"}};
}

absl::StatusOr<std::optional<SlurmStart>> Start(
    const std::map<std::string, std::string>& variables) {
  return StartUnderSlurm([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// Goal: an agent knows its place from Slurm's variables, and all agents of a
// step come to the same port. Method: variables as srun sets them.
TEST(SlurmStartTest, ReadsItsPlace) {
  auto variables = ExampleVariables();
  const auto start = Start(variables);
  ASSERT_TRUE(start.ok() && start->has_value()) << start.status();
  EXPECT_EQ((*start)->place.agent_idx, 5);
  EXPECT_EQ((*start)->place.num_agents, 7);
  EXPECT_EQ((*start)->place.AgentsOnThisHost(), 2);
  EXPECT_EQ((*start)->place.IndexOnThisHost(), 1);
  EXPECT_TRUE((*start)->place.SeveralHosts());
  EXPECT_EQ((*start)->first_node, "node007");
  variables["SLURM_NODEID"] = "3";
  EXPECT_EQ((*Start(variables))->place.AgentsOnThisHost(), 1);
  EXPECT_EQ((*Start(variables))->port, (*start)->port);
  variables["SLURM_STEP_ID"] = "1";
  EXPECT_NE((*Start(variables))->port, (*start)->port);
  for (const char* list : {"gpu1", "gpu1,gpu[2-3]", "gpu[1,3]"}) {
    variables["SLURM_STEP_NODELIST"] = list;
    EXPECT_EQ((*Start(variables))->first_node, "gpu1");
  }
  const std::pair<const char*, const char*> lists[] = {
      {"node[1-2]-ib", "node1-ib"},
      {"node[03,05]-ib,gpu1", "node03-ib"},
      {"rack[0-1]n[1-4]", "rack0n1"},
      {"rack[2,4]n[10-11]x,rack3", "rack2n10x"}};
  for (const auto& [list, first] : lists) {
    variables["SLURM_STEP_NODELIST"] = list;
    EXPECT_EQ((*Start(variables))->first_node, first);
  }
  variables["SLURM_JOB_ID"] = "4294967294";
  EXPECT_EQ((*Start(variables))->port, 20000 + (7294 * 16 + 1) % 10000);
}

// Goal: nothing changes where MPI knows the processes, or there is only one.
TEST(SlurmStartTest, LeavesTheRestToMpi) {
  EXPECT_FALSE(Start({})->has_value());
  for (const char* of_mpi : {"PMIX_RANK", "OMPI_COMM_WORLD_SIZE"}) {
    auto variables = ExampleVariables();
    variables[of_mpi] = "1";
    EXPECT_FALSE(Start(variables)->has_value()) << of_mpi;
  }
  auto alone = ExampleVariables();
  alone["SLURM_STEP_NUM_TASKS"] = "1";
  EXPECT_FALSE(Start(alone)->has_value());
}

TEST(SlurmStartTest, RefusesWhatSlurmDoesNotSay) {
  const std::pair<const char*, const char*> cases[] = {
      {"SLURM_PROCID", "x"},
      {"SLURM_NODEID", "4"},
      {"SLURM_STEP_TASKS_PER_NODE", "2(xa),1"},
      {"SLURM_STEP_NODELIST", ""}};
  for (const auto& [name, value] : cases) {
    auto variables = ExampleVariables();
    variables[name] = value;
    EXPECT_EQ(Start(variables).status().code(),
              absl::StatusCode::kInvalidArgument)
        << name;
  }
}

}  // namespace
}  // namespace millrace
