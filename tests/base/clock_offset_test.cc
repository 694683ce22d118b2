#include "base/clock_offset.h"

#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

// An exchange with a clock that is `ahead`, over ways that take so long.
ClockExchange Exchanged(int64_t ahead, int64_t there, int64_t back) {
  // A date of 2026, where a double has no more nanoseconds.
  constexpr int64_t kStart = 1'790'000'000'000'000'000;
  constexpr int64_t kThinking = 3 * kMillisecond;
  return {.asked = kStart,
          .received = kStart + there + ahead,
          .answered = kStart + there + kThinking + ahead,
          .arrived = kStart + there + kThinking + back};
}

// Goal: the offset comes from the quickest exchange, whose error is bounded.
// Method: slow exchanges whose ways differ, which alone would mislead.
TEST(ClockOffsetTest, TheQuickestExchangeCounts) {
  const int64_t ahead = -5000 * kMillisecond;
  const ClockOffset offset =
      OffsetOf({Exchanged(ahead, 40 * kMillisecond, kMillisecond),
                Exchanged(ahead, 200'000, 200'000),
                Exchanged(ahead, kMillisecond, 90 * kMillisecond)});
  EXPECT_DOUBLE_EQ(offset.seconds, -5.0);
  EXPECT_DOUBLE_EQ(offset.uncertainty, 200e-6);
}

TEST(ClockOffsetTest, TheErrorOfUnequalWaysIsWithinTheUncertainty) {
  const ClockOffset offset =
      OffsetOf({Exchanged(7 * kMillisecond, 900'000, 100'000)});
  EXPECT_NEAR(offset.seconds, 7e-3, offset.uncertainty);
  EXPECT_DOUBLE_EQ(offset.uncertainty, 500e-6);
}

}  // namespace
}  // namespace millrace
