#include "fault/slow_cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Goal: each cause is said with its numbers, several together, and none if
// nothing stands out or nothing is known.
TEST(SlowCauseTest, SaysWhatStandsOut) {
  const HostSign well = {.megahertz = 2400,
                         .num_throttles = 7,
                         .steal_share = 0.01,
                         .processor_pressure = 0.3,
                         .memory_pressure = 0};
  EXPECT_THAT(SlowCause(well, well), HasSubstr("neither"));
  EXPECT_THAT(SlowCause({}, {}), HasSubstr("neither"));
  HostSign hot = well;
  hot.megahertz = 1200;
  hot.num_throttles = 9;
  EXPECT_THAT(SlowCause(well, hot),
              AllOf(HasSubstr("throttled the processors 2"),
                    HasSubstr("1200 MHz and ran at 2400"),
                    testing::Not(HasSubstr("memory"))));
  HostSign busy = well;
  busy.steal_share = 0.2;
  busy.processor_pressure = 0.8;
  busy.memory_pressure = 0.1;
  EXPECT_THAT(SlowCause(well, busy),
              AllOf(HasSubstr("hypervisor takes 20 %"),
                    HasSubstr("wait for a processor 80 %"),
                    HasSubstr("wait for memory 10 %")));
}

// Goal: a rank on a GPU has its GPU's causes named first, and is told that its
// GPU is well if nothing stands out. A rank without one hears of none.
TEST(SlowCauseTest, NamesTheGpuToo) {
  const HostSign well = {
      .megahertz = 2400,
      .gpu = {.present = 1, .clock_mhz = 1980, .throttle_reasons = 0}};
  EXPECT_EQ(SlowCause(well, well),
            "neither its GPU's clock, throttling, memory and links nor its "
            "host's clock, heat, memory nor other processes explain it");
  EXPECT_EQ(SlowCause({}, {.megahertz = 2400}),
            "neither its host's clock, heat, memory nor other processes "
            "explain it");
  HostSign hot = well;
  hot.gpu.clock_mhz = 1200;
  hot.gpu.throttle_reasons = 0x40;
  hot.megahertz = 800;
  EXPECT_EQ(SlowCause(well, hot),
            "its GPU is slowed down: heat (by the hardware); its GPU runs at "
            "1200 MHz and ran at 1980 MHz; the processors run at 800 MHz and "
            "ran at 2400 MHz");
}

}  // namespace
}  // namespace millrace
