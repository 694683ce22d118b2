#include "coordinator/plan_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace millrace {
namespace {

DeviceFacts ThreeHosts() {
  return {.num_devices = 24,
          .ranks_per_host = 8,
          .machines = {"a", "a", "a"},
          .memory_bytes = 1000};
}

std::shared_ptr<const Plan> PlanOf(int64_t bytes) {
  Plan plan;
  plan.prediction.persistent_bytes = bytes;
  return std::make_shared<const Plan>(plan);
}

// Goal: the devices that are left are those of all hosts but one, whichever it
// is. Method: an agent a host, several agents a host, and hosts that differ.
TEST(WithoutOneHostTest, IsTheSameWhicheverHostIsLost) {
  const DeviceFacts all = ThreeHosts();
  const std::vector<AgentDevices> agents(3, {8, 8});
  const std::optional<DeviceFacts> left = WithoutOneHost(all, agents);
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->num_devices, 16);
  EXPECT_EQ(left->machines, std::vector<std::string>(2, "a"));
  EXPECT_TRUE(left->may_leave_idle);

  DeviceFacts by_agents = all;
  by_agents.machines.assign(6, "a");
  const auto fewer =
      WithoutOneHost(by_agents, std::vector<AgentDevices>(6, {4, 8}));
  ASSERT_TRUE(fewer.has_value());
  EXPECT_EQ(fewer->num_devices, 16);
  EXPECT_EQ(fewer->machines.size(), 4u);

  DeviceFacts unlike = all;
  unlike.machines[1] = "b";
  EXPECT_FALSE(WithoutOneHost(unlike, agents).has_value());
  const std::vector<AgentDevices> uneven = {{8, 8}, {8, 8}, {4, 4}};
  EXPECT_FALSE(WithoutOneHost(all, uneven).has_value());
  EXPECT_FALSE(WithoutOneHost(all, {}).has_value());
  DeviceFacts one = all;
  one.num_devices = 8;
  one.machines = {"a"};
  EXPECT_FALSE(
      WithoutOneHost(one, std::vector<AgentDevices>(1, {8, 8})).has_value());
}

// Goal: whoever asks for the plan that is being made gets it once it is there,
// and nobody waits for one of other devices. Method: hold the search.
TEST(PlanAheadTest, IsWaitedForWhereItIsOfTheDevices) {
  const DeviceFacts devices = ThreeHosts();
  DeviceFacts others = devices;
  others.num_devices = 16;
  PlanAhead ahead;
  EXPECT_EQ(ahead.Await(devices), nullptr);
  absl::Notification may_end;
  const auto plan = PlanOf(900);
  ASSERT_TRUE(ahead.Begin(devices, [&](const std::stop_token&) {
    may_end.WaitForNotification();
    return plan;
  }));
  EXPECT_EQ(ahead.Await(others), nullptr);
  // It is not made twice.
  const auto never = [](const std::stop_token&) { return PlanOf(1); };
  EXPECT_FALSE(ahead.Begin(devices, never));
  std::shared_ptr<const Plan> found;
  std::thread waiting([&] { found = ahead.Await(devices); });
  may_end.Notify();
  waiting.join();
  EXPECT_EQ(found, plan);
  EXPECT_EQ(ahead.Await(devices), plan);
  EXPECT_FALSE(ahead.Begin(devices, never));
  // Nothing is under way, so nothing is stopped.
  ahead.Stop();
  EXPECT_EQ(ahead.Await(devices), plan);

  // It must fit the devices that are there then.
  DeviceFacts smaller = devices;
  smaller.memory_bytes = 899;
  EXPECT_EQ(ahead.Await(smaller), nullptr);

  // One for other devices takes its place.
  ASSERT_TRUE(
      ahead.Begin(others, [](const std::stop_token&) { return nullptr; }));
  EXPECT_EQ(ahead.Await(others), nullptr);
  EXPECT_EQ(ahead.Await(devices), nullptr);
}

// Goal: a search that is stopped holds nobody up: who waits for its plan goes
// on without one, the next search begins, and the class ends. Method: searches
// that end only once they are told to stop; with one that were waited for, the
// test would hang.
TEST(PlanAheadTest, StoppedSearchesHoldNobodyUp) {
  const DeviceFacts devices = ThreeHosts();
  DeviceFacts others = devices;
  others.num_devices = 16;
  std::atomic<int> num_stopped = 0;
  const auto until_stopped = [&](const std::stop_token& stop) {
    while (!stop.stop_requested()) absl::SleepFor(absl::Milliseconds(1));
    ++num_stopped;
    return PlanOf(900);
  };
  {
    PlanAhead ahead;
    ASSERT_TRUE(ahead.Begin(devices, until_stopped));
    std::shared_ptr<const Plan> found = PlanOf(1);
    std::thread waiting([&] { found = ahead.Await(devices); });
    ahead.StopUnlessFor(devices);
    EXPECT_FALSE(ahead.Begin(devices, until_stopped));
    ahead.Stop();
    waiting.join();
    EXPECT_EQ(found, nullptr);
    EXPECT_EQ(ahead.Await(devices), nullptr);

    // A stopped search may be made up for, and one for other devices stops it.
    ASSERT_TRUE(ahead.Begin(devices, until_stopped));
    const auto plan = PlanOf(900);
    ASSERT_TRUE(ahead.Begin(others, [&](const std::stop_token&) {
      EXPECT_EQ(num_stopped, 2);
      return plan;
    }));
    EXPECT_EQ(ahead.Await(others), plan);
    ASSERT_TRUE(ahead.Begin(devices, until_stopped));
    ahead.StopUnlessFor(others);
    EXPECT_EQ(ahead.Await(devices), nullptr);
    ASSERT_TRUE(ahead.Begin(devices, until_stopped));
  }
  EXPECT_EQ(num_stopped, 4);
}

}  // namespace
}  // namespace millrace
