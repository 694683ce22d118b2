#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_join.h"
#include "tests/sim/cluster.h"

namespace millrace {
namespace {

// MILLRACE_SIM_SEED=N replays one seed.
std::vector<uint64_t> Seeds(uint64_t count) {
  if (const char* seed = std::getenv("MILLRACE_SIM_SEED")) {
    return {std::strtoull(seed, nullptr, 10)};
  }
  std::vector<uint64_t> seeds;
  for (uint64_t seed = 1; seed <= count; ++seed) seeds.push_back(seed);
  return seeds;
}

void ExpectFinished(const ClusterOptions& options, const Cluster& cluster) {
  EXPECT_TRUE(cluster.violations().empty())
      << absl::StrJoin(cluster.violations(), "\n");
  ASSERT_TRUE(cluster.end().has_value());
  EXPECT_EQ(cluster.end()->verdict, Verdict::kFinished)
      << cluster.end()->reason;
  EXPECT_EQ(cluster.end()->steps, options.num_steps);
}

// Goal: without faults a job needs one generation (two with a profile) and
// commits each checkpoint once. Method: late and repeated messages only.
TEST(JobSimulationTest, RunsThroughWithoutFaults) {
  for (uint64_t seed : Seeds(50)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    for (bool needs_profile : {false, true}) {
      const ClusterOptions options = {.seed = seed,
                                      .needs_profile = needs_profile};
      Cluster cluster(options);
      cluster.Run();
      ExpectFinished(options, cluster);
      EXPECT_EQ(cluster.num_generations(), needs_profile ? 2 : 1);
      EXPECT_EQ(cluster.num_commits(), 6);  // 7, 14, 21, 28, 35, 40.
    }
  }
}

// Goal: whatever dies whenever, the job ends with all its steps done, every
// commit whole and unique, every generation restored from the last commit.
// Method: random deaths and freezes of workers and deaths of the coordinator,
// in clusters of different shapes.
TEST(JobSimulationTest, SurvivesRandomDeaths) {
  for (uint64_t seed : Seeds(2000)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 1 + static_cast<int32_t>(seed % 3),
        .devices_per_agent = 1 + static_cast<int32_t>(seed % 4),
        .needs_profile = seed % 5 == 0,
        .num_worker_kills = static_cast<int32_t>(seed % 7),
        .num_worker_freezes = static_cast<int32_t>(seed % 2),
        .num_coordinator_kills = static_cast<int32_t>(seed % 4)};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    if (testing::Test::HasFailure()) break;
  }
}

// Goal: without a checkpoint at the end a job still ends, after the commit of
// its last step where the interval asks for one. Method: both kinds of
// interval, with deaths around.
TEST(JobSimulationTest, EndsWithoutCheckpoint) {
  for (uint64_t seed : Seeds(300)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .checkpoint_interval = seed % 2 == 0 ? 7 : 10,
        .checkpoint_at_end = false,
        .num_worker_kills = static_cast<int32_t>(seed % 3),
        .num_coordinator_kills = static_cast<int32_t>(seed % 2)};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    EXPECT_EQ(cluster.num_commits(), seed % 2 == 0 ? 5 : 4);
    if (testing::Test::HasFailure()) break;
  }
}

// Goal: a graceful stop ends with a checkpoint of the last step taken, or
// before training began. Method: stop at many moments, with deaths around.
TEST(JobSimulationTest, StopsGracefully) {
  for (uint64_t seed : Seeds(300)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_steps = 100000,
        .num_worker_kills = static_cast<int32_t>(seed % 3),
        .stop_after_s = 0.03 * static_cast<double>(seed)};
    Cluster cluster(options);
    cluster.Run();
    EXPECT_TRUE(cluster.violations().empty())
        << absl::StrJoin(cluster.violations(), "\n");
    ASSERT_TRUE(cluster.end().has_value());
    EXPECT_EQ(cluster.end()->verdict, Verdict::kStopped);
    EXPECT_TRUE(cluster.end()->steps >= 0 ||
                cluster.end()->reason == "stopped before training");
    if (testing::Test::HasFailure()) break;
  }
}

// Goal: a job whose workers die for ever gives up and says why, rather than
// restarting for ever. Method: more kills than the budget allows.
TEST(JobSimulationTest, GivesUpBeyondTheBudget) {
  ClusterOptions options = {.seed = 3, .num_worker_kills = 200};
  options.num_steps = 10000;
  options.max_restarts = 3;
  Cluster cluster(options);
  cluster.Run();
  EXPECT_TRUE(cluster.violations().empty());
  ASSERT_TRUE(cluster.end().has_value());
  EXPECT_EQ(cluster.end()->verdict, Verdict::kFailed);
  EXPECT_NE(cluster.end()->reason.find("fault.max_restarts = 3"),
            std::string::npos)
      << cluster.end()->reason;
}

}  // namespace
}  // namespace millrace
