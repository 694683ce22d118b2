#include "worker/backend/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/backend/fake_gpus.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr char kHealthyGpu[] =
    "0000:0a:00.0 clock_mhz 345\n"
    "0000:1b:00.0 clock_mhz 1980\n"
    "0000:1b:00.0 throttle_reasons 4\n"
    "0000:1b:00.0 corrected_errors 5000000000\n"
    "0000:1b:00.0 uncorrected_errors 2\n"
    "0000:1b:00.0 remap_pending 1\n"
    "0000:1b:00.0 remap_failed 0\n"
    "0000:1b:00.0 link0 1\n"
    "0000:1b:00.0 link0_counter0 7\n"
    "0000:1b:00.0 link0_counter2 5\n"
    "0000:1b:00.0 link1 0\n"
    "0000:1b:00.0 link1_counter1 1\n"
    "0000:1b:00.0 pcie_width 16\n";

// Goal: each value is read from its function, for the GPU at the given place on
// the bus and no other. Method: a driver with two GPUs.
TEST(NvmlTest, ReadsTheSignOfTheGpuAtABusId) {
  FakeGpus gpus;
  gpus.Set(kHealthyGpu);
  const auto nvml = Nvml::Create(FakeGpus::Library());
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  const GpuSign sign = (*nvml)->ReadSignAt("0000:1b:00.0");
  EXPECT_EQ(sign.present, 1);
  EXPECT_EQ(sign.clock_mhz, 1980);
  EXPECT_EQ(sign.throttle_reasons, 4);
  EXPECT_EQ(sign.corrected_errors, 5'000'000'000);
  EXPECT_EQ(sign.uncorrected_errors, 2);
  EXPECT_EQ(sign.remap_pending, 1);
  EXPECT_EQ(sign.remap_failed, 0);
  EXPECT_EQ(sign.nvlinks, 2);
  EXPECT_EQ(sign.active_nvlinks, 1);
  EXPECT_EQ(sign.nvlink_errors, 13);
  EXPECT_EQ(sign.pcie_width, 16);
  EXPECT_EQ((*nvml)->ReadSignAt("0000:0a:00.0").clock_mhz, 345);
}

// Goal: values that a GPU does not have stay unknown, and are no zeros.
TEST(NvmlTest, LeavesUnknownWhatTheGpuDoesNotTell) {
  FakeGpus gpus;
  gpus.Set("0000:0a:00.0 clock_mhz 345\n");
  const auto nvml = Nvml::Create(FakeGpus::Library());
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  const GpuSign sign = (*nvml)->ReadSignAt("0000:0a:00.0");
  EXPECT_EQ(sign.present, 1);
  EXPECT_EQ(sign.throttle_reasons, -1);
  EXPECT_EQ(sign.corrected_errors, -1);
  EXPECT_EQ(sign.uncorrected_errors, -1);
  EXPECT_EQ(sign.remap_pending, -1);
  EXPECT_EQ(sign.nvlinks, -1);
  EXPECT_EQ(sign.active_nvlinks, -1);
  EXPECT_EQ(sign.nvlink_errors, -1);
  EXPECT_EQ(sign.pcie_width, -1);
}

// Goal: a GPU that the driver lost (error 15) or does not list is not present;
// one that it may not show us (error 4) is unknown.
TEST(NvmlTest, TellsALostGpuFromAHiddenOne) {
  FakeGpus gpus;
  gpus.Set("0000:1b:00.0 error 15\n0000:1c:00.0 error 4\n");
  const auto nvml = Nvml::Create(FakeGpus::Library());
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  EXPECT_EQ((*nvml)->ReadSignAt("0000:1b:00.0").present, 0);
  EXPECT_EQ((*nvml)->ReadSignAt("0000:99:00.0").present, 0);
  EXPECT_FALSE(IsKnown((*nvml)->ReadSignAt("0000:1c:00.0")));
}

// Goal: what is amiss with the driver is said.
TEST(NvmlTest, SaysWhyItCannotBeUsed) {
  FakeGpus gpus;
  gpus.Set("all init 999\n");
  EXPECT_THAT(std::string(Nvml::Create(FakeGpus::Library()).status().message()),
              HasSubstr("does not start: Unknown Error"));
  EXPECT_THAT(std::string(Nvml::Create("libno_nvml.so").status().message()),
              HasSubstr("cannot be loaded"));
  // A library without any of the functions.
  EXPECT_THAT(std::string(Nvml::Create("libm.so.6").status().message()),
              HasSubstr("error -1"));
}

}  // namespace
}  // namespace millrace
