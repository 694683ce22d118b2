// Simulated jobs whose numbers are wrong; see cluster.h.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/sim/cluster.h"
#include "tests/sim/seeds.h"

namespace millrace {
namespace {

// Goal: ranks that hang in a step are killed and replaced, wrong replicas and
// rolled-back steps go back to the last commit, nothing is committed of a
// generation whose replicas differed, and the job ends with all its steps.
// Method: all of it at random moments, while workers and coordinators die.
TEST(JobSimulationTest, RecoversFromHangsAndWrongNumbers) {
  int32_t num_hung = 0;
  for (uint64_t seed : Seeds(2000)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 1 + static_cast<int32_t>(seed % 3),
        .devices_per_agent = 2,
        .num_steps = 100,
        .num_worker_kills = static_cast<int32_t>(seed % 2),
        .num_rank_hangs = static_cast<int32_t>(seed % 4),
        .num_wrong_replicas = static_cast<int32_t>(seed % 3),
        .num_roll_backs = static_cast<int32_t>(seed % 2),
        .num_coordinator_kills = static_cast<int32_t>(seed % 5 == 0)};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    num_hung += cluster.num_hung();
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(num_hung, 500 / SweepStep(13));
}

// Goal: a bit that flips in one rank before another one is killed never comes
// into the state that is restored, unless one worker alone is left that holds
// it; nothing of such a state is committed, and the job ends with all its
// steps. Method: two such pairs of faults at random moments, among two to eight
// ranks that hold the same state, while workers and coordinators die too.
TEST(JobSimulationTest, NoFlippedStateIsRestored) {
  int64_t num_differing = 0;
  int64_t num_from_memory = 0;
  const std::vector<uint64_t> seeds = Seeds(2000);
  for (uint64_t seed : seeds) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 1 + static_cast<int32_t>(seed % 4),
        .devices_per_agent = 2,
        .num_steps = 150,
        .checkpoint_interval = 10 + static_cast<int64_t>(seed % 30),
        .num_worker_kills = static_cast<int32_t>(seed % 3),
        .num_flips_and_kills = 2,
        .num_coordinator_kills = static_cast<int32_t>(seed % 5 == 0)};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    num_differing += cluster.num_differing();
    num_from_memory += cluster.num_from_memory();
    if (testing::Test::HasFailure()) break;
  }
  if (seeds.size() < 100) return;  // A replay.
  EXPECT_GT(num_differing, static_cast<int64_t>(seeds.size() / 4));
  EXPECT_GT(num_from_memory, static_cast<int64_t>(seeds.size() / 4));
}

}  // namespace
}  // namespace millrace
