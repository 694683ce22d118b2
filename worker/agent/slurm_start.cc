#include "worker/agent/slurm_start.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr int32_t kFirstPort = 20000;
constexpr int32_t kNumPorts = 10000;

absl::Status Unexpected(const char* name, absl::string_view value) {
  return absl::InvalidArgumentError(absl::StrCat(
      name, "=", value,
      " is not what srun sets; start agents by mpirun or srun --mpi=pmix"));
}

template <typename Number = int32_t>
absl::StatusOr<Number> ReadNumber(const ReadVariable& read, const char* name) {
  const char* value = read(name);
  Number number = 0;
  if (value == nullptr || !absl::SimpleAtoi(value, &number) || number < 0) {
    return Unexpected(name, value == nullptr ? "" : value);
  }
  return number;
}

// The first of "rack[0-1]n[003-7,9]-ib,gpu1": "rack0n003-ib". Each bracket
// stands for its first number.
std::string FirstNode(absl::string_view list) {
  std::string node;
  while (!list.empty() && list[0] != ',') {
    if (list[0] == '[') {
      list.remove_prefix(1);
      absl::StrAppend(&node, list.substr(0, list.find_first_of("-,]")));
      const size_t end = list.find(']');
      list.remove_prefix(end == absl::string_view::npos ? list.size() : end);
    } else {
      node.push_back(list[0]);
    }
    if (!list.empty()) list.remove_prefix(1);
  }
  return node;
}

// The number of one node in a list like "2(x3),1": three nodes with two tasks
// each, and a fourth with one.
absl::StatusOr<int32_t> TasksOfNode(const std::string& tasks_per_node,
                                    int32_t node_idx) {
  const char* name = "SLURM_STEP_TASKS_PER_NODE";
  for (absl::string_view part : absl::StrSplit(tasks_per_node, ',')) {
    const std::pair<absl::string_view, absl::string_view> words =
        absl::StrSplit(part, absl::MaxSplits("(x", 1));
    int32_t num_tasks = 0;
    int32_t num_nodes = 1;
    const bool repeats = !words.second.empty();
    if (!absl::SimpleAtoi(words.first, &num_tasks) || num_tasks < 1 ||
        (repeats &&
         !absl::SimpleAtoi(words.second.substr(0, words.second.find(')')),
                           &num_nodes))) {
      return Unexpected(name, tasks_per_node);
    }
    if (node_idx < num_nodes) return num_tasks;
    node_idx -= num_nodes;
  }
  return Unexpected(name, tasks_per_node);
}

}  // namespace

absl::StatusOr<std::optional<SlurmStart>> StartUnderSlurm(
    const ReadVariable& read) {
  // srun alone sets the first; the others say that MPI has its own answer.
  if (read("SLURM_STEP_NUM_TASKS") == nullptr || read("PMIX_RANK") != nullptr ||
      read("OMPI_COMM_WORLD_SIZE") != nullptr) {
    return std::nullopt;
  }
  SlurmStart start;
  ASSIGN_OR_RETURN(start.place.num_agents,
                   ReadNumber(read, "SLURM_STEP_NUM_TASKS"));
  if (start.place.num_agents < 2) return std::nullopt;
  ASSIGN_OR_RETURN(start.place.agent_idx, ReadNumber(read, "SLURM_PROCID"));
  ASSIGN_OR_RETURN(start.place.idx_on_this_host,
                   ReadNumber(read, "SLURM_LOCALID"));
  ASSIGN_OR_RETURN(const int32_t node_idx, ReadNumber(read, "SLURM_NODEID"));
  // Slurm's own are of 32 bits without a sign.
  ASSIGN_OR_RETURN(const int64_t job_id,
                   ReadNumber<int64_t>(read, "SLURM_JOB_ID"));
  ASSIGN_OR_RETURN(const int32_t step_id, ReadNumber(read, "SLURM_STEP_ID"));
  const char* tasks = read("SLURM_STEP_TASKS_PER_NODE");
  ASSIGN_OR_RETURN(start.place.agents_on_this_host,
                   TasksOfNode(tasks == nullptr ? "" : tasks, node_idx));
  const char* nodes = read("SLURM_STEP_NODELIST");
  if (nodes == nullptr || *nodes == '\0') {
    return Unexpected("SLURM_STEP_NODELIST", "");
  }
  start.first_node = FirstNode(nodes);
  start.port =
      kFirstPort +
      static_cast<int32_t>((job_id % kNumPorts * 16 + step_id) % kNumPorts);
  return start;
}

}  // namespace millrace
