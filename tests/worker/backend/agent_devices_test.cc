#include "worker/backend/agent_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/units.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Machine kMachine = {
    .processor = "Some CPU", .num_cores = 32, .memory_bytes = 256 * kGiB};

std::vector<CudaDeviceInfo> Gpus(size_t count) {
  std::vector<CudaDeviceInfo> gpus;
  for (size_t i = 0; i < count; ++i) {
    gpus.push_back({.name = "NVIDIA H200",
                    .compute_capability = 90,
                    .num_multiprocessors = 132,
                    .memory_bytes = 140 * kGiB,
                    .pci_bus_id = absl::StrCat("0000:", i, "b:00.0")});
  }
  return gpus;
}

// Goal: cores are shared out among the workers of all agents of a host, the
// job's figures first. Method: with none, one and both of them.
TEST(ShareCoresTest, SharesWhatTheJobLeavesOpen) {
  const AgentDevices free = ShareCores({}, kMachine, {.num_agents = 2});
  EXPECT_EQ(free.num_devices, 16);
  EXPECT_TRUE(free.gpu_bus_ids.empty());
  EXPECT_EQ(free.threads_per_device, 1);
  EXPECT_EQ(free.devices_on_host, 32);
  EXPECT_EQ(free.memory_bytes, 256 * kGiB / 10 * 9 / 32);
  const AgentDevices four =
      ShareCores({.devices_per_agent = 4}, kMachine, {.num_agents = 2});
  EXPECT_EQ(four.num_devices, 4);
  EXPECT_EQ(four.threads_per_device, 4);
  const AgentDevices threads =
      ShareCores({.threads_per_device = 8}, kMachine, {});
  EXPECT_EQ(threads.num_devices, 4);
  const AgentDevices more = ShareCores(
      {.devices_per_agent = 64, .threads_per_device = 2}, kMachine, {});
  EXPECT_EQ(more.num_devices, 64);
  EXPECT_EQ(more.threads_per_device, 2);
}

// Goal: a worker finds its GPU when another one has gone, and never takes
// another for its own.
TEST(IndexOfGpuTest, FollowsTheBusId) {
  std::vector<CudaDeviceInfo> gpus = Gpus(4);
  EXPECT_EQ(*IndexOfGpu(gpus, "0000:3b:00.0"), 3);
  gpus.erase(gpus.begin() + 1);
  EXPECT_EQ(*IndexOfGpu(gpus, "0000:3b:00.0"), 2);
  const auto gone = IndexOfGpu(gpus, "0000:1b:00.0");
  EXPECT_TRUE(absl::IsInternal(gone.status())) << gone.status();
  EXPECT_THAT(gone.status().message(), HasSubstr("GPU 0000:1b:00.0"));
}

// Goal: every GPU has one worker, agents of a host take neighbours without
// overlap, and memory keeps a reserve. Method: one agent, then two.
TEST(ShareGpusTest, GivesEachAgentItsOwn) {
  const auto all = ShareGpus({}, kMachine, Gpus(8), {});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->num_devices, 8);
  EXPECT_EQ(all->devices_on_host, 8);
  EXPECT_EQ(all->first_device_idx, 0);
  EXPECT_EQ(all->threads_per_device, 4);
  EXPECT_EQ(all->gpu_bus_ids.size(), 8u);
  EXPECT_EQ(all->machine, "NVIDIA-H200-x8");
  EXPECT_THAT(all->description, HasSubstr("8 x NVIDIA H200 of 140"));
  EXPECT_LT(all->memory_bytes, 140 * kGiB);
  EXPECT_GT(all->memory_bytes, 130 * kGiB);

  const auto second = ShareGpus({.devices_per_agent = 3}, kMachine, Gpus(8),
                                {.num_agents = 2, .agent_idx = 1});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->num_devices, 3);
  EXPECT_EQ(second->devices_on_host, 6);
  EXPECT_EQ(second->first_device_idx, 3);
  EXPECT_THAT(second->gpu_bus_ids,
              ElementsAre("0000:3b:00.0", "0000:4b:00.0", "0000:5b:00.0"));
  EXPECT_EQ(second->machine, "NVIDIA-H200-x8");
}

// Goal: what cannot be had is refused with the figures and what to change.
// Method: too many GPUs, too many agents, a stranger among the GPUs; one that
// is not used does not matter.
TEST(ShareGpusTest, RefusesWhatIsNotThere) {
  const auto many = ShareGpus({.devices_per_agent = 4}, kMachine, Gpus(2), {});
  EXPECT_EQ(many.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(many.status().message()),
              HasSubstr("4 GPUs are wanted, but there are 2 (0: NVIDIA H200, "
                        "1: NVIDIA H200)"));
  const auto agents = ShareGpus({}, kMachine, Gpus(2), {.num_agents = 3});
  EXPECT_THAT(std::string(agents.status().message()),
              HasSubstr("1 GPUs for each of 3 agents on this host are wanted"));

  std::vector<CudaDeviceInfo> mixed = Gpus(3);
  mixed[2].name = "NVIDIA A100";
  const auto unlike = ShareGpus({}, kMachine, mixed, {});
  EXPECT_EQ(unlike.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(unlike.status().message()),
              HasSubstr("2: NVIDIA A100"));
  EXPECT_TRUE(ShareGpus({.devices_per_agent = 2}, kMachine, mixed, {}).ok());
}

}  // namespace
}  // namespace millrace
