#include "fault/gpu_sign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr GpuSign kWell = {.present = 1,
                           .clock_mhz = 1980,
                           .throttle_reasons = 0x4,  // At its power limit.
                           .corrected_errors = 3,
                           .uncorrected_errors = 1,
                           .remap_pending = 0,
                           .remap_failed = 0,
                           .nvlinks = 18,
                           .active_nvlinks = 18,
                           .nvlink_errors = 4,
                           .pcie_width = 16};

TEST(GpuSignTest, NamesReasonsThatSlowDown) {
  EXPECT_EQ(SlowingReasons(-1), "");
  EXPECT_EQ(SlowingReasons(0x1 | 0x4), "") << "idle, at its power limit";
  EXPECT_EQ(SlowingReasons(0x40 | 0x80),
            "heat (by the hardware), the power supply asks for less (power "
            "brake)");
}

// Goal: each cause of slowness is told alone, with its numbers. Method: one
// value of a GPU that is well changes.
TEST(GpuSignTest, ExplainsASlowRank) {
  EXPECT_THAT(SlowGpuCauses(kWell, kWell), IsEmpty());
  const struct {
    int64_t GpuSign::*value;
    int64_t now;
    const char* cause;
  } cases[] = {
      {&GpuSign::clock_mhz, 1700,
       "its GPU runs at 1700 MHz and ran at 1980 "
       "MHz"},
      {&GpuSign::throttle_reasons, 0x20,
       "its GPU is slowed down: heat (by the driver)"},
      {&GpuSign::corrected_errors, 4,
       "its GPU counts 1 new corrected memory "
       "error"},
      {&GpuSign::uncorrected_errors, 3,
       "its GPU counts 2 new uncorrected "
       "memory errors"},
      {&GpuSign::active_nvlinks, 16, "2 of its GPU's 18 NVLinks were lost"},
      {&GpuSign::nvlink_errors, 904, "its GPU's NVLinks count 900 new errors"},
      {&GpuSign::pcie_width, 8, "its GPU has 8 PCIe lanes and had 16"},
      {&GpuSign::present, 0, "the driver does not find its GPU any more"},
  };
  for (const auto& one : cases) {
    GpuSign now = kWell;
    now.*one.value = one.now;
    EXPECT_THAT(SlowGpuCauses(kWell, now), ElementsAre(one.cause));
    // Values that were not known before tell of no change.
    GpuSign before = kWell;
    before.*one.value = -1;
    if (one.value != &GpuSign::throttle_reasons) {
      EXPECT_THAT(SlowGpuCauses(before, now), IsEmpty()) << one.cause;
    }
    now.*one.value = -1;
    EXPECT_THAT(SlowGpuCauses(kWell, now), IsEmpty()) << one.cause;
  }
  GpuSign nearly = kWell;
  nearly.clock_mhz = 1800;  // More than 0.9 of before.
  EXPECT_THAT(SlowGpuCauses(kWell, nearly), IsEmpty());
}

TEST(GpuSignTest, ExplainsADeath) {
  EXPECT_THAT(GpuFailures(kWell, kWell), IsEmpty());
  EXPECT_THAT(GpuFailures({}, {}), IsEmpty());
  GpuSign slow = kWell;
  slow.clock_mhz = 345;
  slow.corrected_errors = 99;
  slow.throttle_reasons = 0x40;
  EXPECT_THAT(GpuFailures(kWell, slow), IsEmpty()) << "no process dies of it";
  GpuSign broken = kWell;
  broken.uncorrected_errors = 2;
  broken.remap_failed = 1;
  broken.remap_pending = 1;
  broken.active_nvlinks = 17;
  EXPECT_THAT(GpuFailures(kWell, broken),
              ElementsAre("its GPU counts 1 new uncorrected memory error",
                          "a row of its GPU's memory failed and could not be "
                          "remapped",
                          "a row of its GPU's memory waits to be remapped at a "
                          "reset",
                          "1 of its GPU's 18 NVLinks were lost"));
  EXPECT_THAT(GpuFailures(broken, broken), IsEmpty()) << "it was so before";
  const GpuSign gone = {.present = 0};
  EXPECT_THAT(GpuFailures(kWell, gone),
              ElementsAre("the driver does not find its GPU any more"));
  EXPECT_THAT(GpuFailures(gone, gone), IsEmpty());
  EXPECT_THAT(GpuFailures({}, gone), IsEmpty());
}

}  // namespace
}  // namespace millrace
