// Devices that fail again and again.

#include <gtest/gtest.h>

#include "tests/sim/cluster.h"
#include "tests/sim/seeds.h"

namespace millrace {
namespace {

// Goal: a device whose worker keeps dying is left out after its second death,
// gets no rank before its time is over, and is taken in again after it; the job
// ends with all its steps. Method: a worker dies soon after it has begun to
// train, on one host of several devices and on several hosts, with copies in
// memory and without.
TEST(FailingDeviceSimulationTest, AreLeftOutAndTakenInAgain) {
  int32_t num_pauses = 0;
  for (uint64_t seed : Seeds(300)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const bool one_host = seed % 2 == 0;
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = one_host ? 1 : 3,
        .devices_per_agent = one_host ? 4 : 1 + static_cast<int32_t>(seed % 3),
        .num_steps = 600,
        .checkpoint_interval = 20,
        .num_flaps = 2 + static_cast<int32_t>(seed % 3),
        .leave_out_s = 5,
        .replica_interval = seed % 4 < 2 ? 0 : 5};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    EXPECT_EQ(cluster.num_left_out(), options.num_flaps - 1);
    EXPECT_EQ(cluster.num_taken_back(), 0);
    num_pauses += cluster.num_pauses();
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(num_pauses, 0);
}

// Goal: a job that cannot do without the device goes on with it. Method: a plan
// needs all devices.
TEST(FailingDeviceSimulationTest, AreTakenBackWhereOthersDoNotSuffice) {
  for (uint64_t seed : Seeds(100)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {.seed = seed,
                                    .num_agents = 2,
                                    .devices_per_agent = 1,
                                    .num_steps = 300,
                                    .num_flaps = 3,
                                    .leave_out_s = 5,
                                    .least_ranks = 2};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    EXPECT_EQ(cluster.num_taken_back(), cluster.num_left_out());
    EXPECT_EQ(cluster.num_left_out(), options.num_flaps - 1);
    if (testing::Test::HasFailure()) break;
  }
}

// Goal: whatever else fails, jobs end with all their steps. Method: hosts are
// lost and coordinators die beside the device.
TEST(FailingDeviceSimulationTest, OtherFaultsChangeNothing) {
  int32_t num_left_out = 0;
  for (uint64_t seed : Seeds(500)) {
    SCOPED_TRACE(testing::Message() << "MILLRACE_SIM_SEED=" << seed);
    const ClusterOptions options = {
        .seed = seed,
        .num_agents = 2 + static_cast<int32_t>(seed % 3),
        .devices_per_agent = 1 + static_cast<int32_t>(seed % 2),
        .num_steps = 400,
        .num_flaps = 4,
        .leave_out_s = 3,
        .num_coordinator_kills = static_cast<int32_t>(seed % 3 == 0),
        .num_host_losses = static_cast<int32_t>(seed % 4),
        .num_host_cuts = static_cast<int32_t>(seed % 3)};
    Cluster cluster(options);
    cluster.Run();
    ExpectFinished(options, cluster);
    num_left_out += cluster.num_left_out();
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(num_left_out, 0);
}

}  // namespace
}  // namespace millrace
