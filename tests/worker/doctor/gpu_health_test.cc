#include "worker/doctor/gpu_health.h"

#include <gtest/gtest.h>

#include "tests/worker/backend/fake_gpus.h"

namespace millrace {
namespace {

// Goal: the doctor's facts hold what the reader of a rank's GPU finds, for all
// GPUs in the driver's order, and travel.
TEST(GpuHealthTest, ReadsAllGpus) {
  FakeGpus gpus;
  gpus.Set(
      "0000:0a:00.0 clock_mhz 345\n0000:1b:00.0 clock_mhz 1980\n"
      "0000:1b:00.0 throttle_reasons 64\n0000:1b:00.0 link0 1\n"
      "0000:1b:00.0 link0_counter0 7\n0000:1b:00.0 pcie_width 16\n");
  HostFacts facts;
  ReadGpuHealth(&facts, FakeGpus::Library());
  EXPECT_EQ(facts.driver, "580.1");
  EXPECT_EQ(facts.driver_cuda, "13.0");
  EXPECT_EQ(facts.gpu_error, "");
  const absl::StatusOr<HostFacts> sent = HostFactsFromJson(ToJson(facts));
  ASSERT_TRUE(sent.ok()) << sent.status();
  ASSERT_EQ(sent->gpus.size(), 2u);
  EXPECT_EQ(sent->gpus[0].name, "0000:0a:00.0");
  EXPECT_EQ(sent->gpus[0].clock_mhz, 345);
  EXPECT_EQ(sent->gpus[0].nvlinks, -1);
  EXPECT_EQ(sent->gpus[1].clock_mhz, 1980);
  EXPECT_EQ(sent->gpus[1].throttle_reasons, 64);
  EXPECT_EQ(sent->gpus[1].active_nvlinks, 1);
  EXPECT_EQ(sent->gpus[1].nvlink_errors, 7);
  EXPECT_EQ(sent->gpus[1].pcie_width, 16);
  EXPECT_EQ(sent->gpus[1].max_pcie_width, -1);
}

TEST(GpuHealthTest, HostsWithoutADriverHaveNone) {
  HostFacts facts;
  ReadGpuHealth(&facts, "libno_nvml.so");
  EXPECT_TRUE(facts.gpus.empty());
  EXPECT_EQ(facts.driver, "");
}

}  // namespace
}  // namespace millrace
