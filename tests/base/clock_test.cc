#include "base/clock.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Goal: the clock never goes back and both forms agree. Method: read them in
// turn many times; each reading lies between its neighbours.
TEST(ClockTest, BothFormsRiseTogether) {
  double earlier_s = MonotonicSeconds();
  for (int i = 0; i < 10000; ++i) {
    const double now_s =
        absl::ToDoubleSeconds(MonotonicNow() - absl::UnixEpoch());
    // A double of seconds since boot resolves a microsecond at worst.
    EXPECT_GE(now_s, earlier_s - 1e-6);
    const double later_s = MonotonicSeconds();
    EXPECT_GE(later_s, now_s - 1e-6);
    earlier_s = later_s;
  }
}

}  // namespace
}  // namespace millrace
