#include "fault/hang_watch.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace millrace {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(2);
constexpr double kStepS = 0.3;

// Heartbeats of two ranks every 0.2 s, looked at every 0.1 s.
class HangWatchTest : public testing::Test {
 protected:
  HangWatchTest() { watch_.Begin(2, kStepS, now_); }

  // Lets time go on. `sign` says what each heartbeat tells.
  template <typename Sign>
  void Pass(absl::Duration duration, const Sign& sign) {
    for (const absl::Time end = now_ + duration; now_ < end;) {
      now_ += absl::Milliseconds(100);
      if (++num_ticks_ % 2 == 0) {
        for (int rank = 0; rank < 2; ++rank) {
          const std::optional<RankSign> told = sign(rank);
          if (told.has_value()) watch_.Note(Rank{rank}, *told, now_);
        }
      }
      if (watch_.StandsStill(now_)) noticed_.push_back(now_);
    }
  }
  RankSign Stepping() {
    RankSign sign = {.activity = RankActivity::kStepping};
    sign.progress.step = 5;
    sign.progress.completed[0] = num_ticks_;
    return sign;
  }
  static RankSign Standing(RankActivity activity = RankActivity::kStepping) {
    RankSign sign = {.activity = activity};
    sign.progress.step = 1'000'000;
    return sign;
  }

  HangWatch watch_{kGrace};
  absl::Time now_ = absl::UnixEpoch();
  int32_t num_ticks_ = 0;
  std::vector<absl::Time> noticed_;
};

// Goal: a standstill is noticed within three steps and the grace, which the
// step of its own takes part of, and told again as long as it lasts.
TEST_F(HangWatchTest, NoticesWithinTheBar) {
  Pass(absl::Seconds(60), [&](int) { return Stepping(); });
  EXPECT_TRUE(noticed_.empty());
  const absl::Time stopped = now_;
  // One rank stops, the other goes on for a step.
  Pass(absl::Seconds(kStepS),
       [&](int rank) { return rank == 0 ? Standing() : Stepping(); });
  Pass(absl::Seconds(4), [&](int) { return Standing(); });
  ASSERT_FALSE(noticed_.empty());
  EXPECT_LE(noticed_[0] - stopped, 3 * absl::Seconds(kStepS) + kGrace);
  EXPECT_GE(noticed_[0] - stopped, absl::Seconds(1.5));
  EXPECT_GT(noticed_.size(), 1u);
  EXPECT_LE(noticed_.size(), 4u);
}

// Goal: no rank is taken to hang while any is in what takes its time, nor while
// one has said nothing yet; steps that take longer than predicted get longer.
TEST_F(HangWatchTest, LeavesTimeToWhatTakesIt) {
  for (const RankActivity activity :
       {RankActivity::kStarting, RankActivity::kExempt}) {
    Pass(absl::Minutes(5),
         [&](int rank) { return rank == 0 ? Standing(activity) : Standing(); });
  }
  EXPECT_TRUE(noticed_.empty());
  Pass(absl::Seconds(50), [&](int rank) {
    return Standing(rank == 0 ? RankActivity::kFirstStep
                              : RankActivity::kStepping);
  });
  EXPECT_TRUE(noticed_.empty());
  Pass(absl::Seconds(70),
       [&](int) { return Standing(RankActivity::kFirstStep); });
  EXPECT_FALSE(noticed_.empty());

  noticed_.clear();
  watch_.Begin(2, kStepS, now_);
  Pass(absl::Minutes(5), [&](int rank) {
    return rank == 0 ? std::nullopt : std::optional(Standing());
  });
  EXPECT_TRUE(noticed_.empty());

  watch_.Begin(2, kStepS, now_);
  for (int i = 0; i < 9; ++i) watch_.NoteStep(10);
  Pass(absl::Seconds(19), [&](int) { return Standing(); });
  EXPECT_TRUE(noticed_.empty());
}

// Goal: a job that hangs again and again gets more time each time, in case that
// it is only slow; a hundred steps make up for it. Nothing is noticed without
// grace.
TEST_F(HangWatchTest, GivesMoreTimeEachTime) {
  std::vector<absl::Duration> waits;
  for (int i = 0; i < 3; ++i) {
    watch_.Begin(2, kStepS, now_);
    noticed_.clear();
    const absl::Time began = now_;
    Pass(absl::Seconds(20), [&](int) { return Standing(); });
    ASSERT_FALSE(noticed_.empty());
    waits.push_back(noticed_[0] - began);
  }
  EXPECT_GT(waits[1], waits[0] + absl::Seconds(1));
  EXPECT_GT(waits[2], waits[1] + absl::Seconds(2));
  for (int i = 0; i < 100; ++i) watch_.NoteStep(kStepS);
  watch_.Begin(2, kStepS, now_);
  noticed_.clear();
  const absl::Time began = now_;
  Pass(absl::Seconds(20), [&](int) { return Standing(); });
  EXPECT_LE(noticed_[0] - began, waits[0] + absl::Milliseconds(200));

  HangWatch never(absl::ZeroDuration());
  never.Begin(1, kStepS, now_);
  never.Note(Rank{0}, Standing(), now_);
  EXPECT_FALSE(never.StandsStill(now_ + absl::Hours(1)));
}

// Goal: who has fallen silent gave no sign; what this process slept through is
// nobody's standstill.
TEST_F(HangWatchTest, KnowsSilenceAndItsOwnStall) {
  Pass(absl::Seconds(1), [&](int) { return Standing(); });
  Pass(absl::Seconds(3), [&](int rank) {
    return rank == 0 ? std::nullopt : std::optional(Standing());
  });
  const auto progress = watch_.Progress(now_);
  EXPECT_FALSE(progress[0].has_value());
  EXPECT_TRUE(progress[1].has_value());
  now_ += absl::Seconds(30);
  watch_.Forgive(now_);
  EXPECT_FALSE(watch_.StandsStill(now_));
}

}  // namespace
}  // namespace millrace
