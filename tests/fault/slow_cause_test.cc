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

}  // namespace
}  // namespace millrace
