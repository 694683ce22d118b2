#include "fault/hang_watch.h"

#include <algorithm>

#include "base/check.h"

namespace millrace {
namespace {

constexpr size_t kStepsKept = 9;
constexpr int32_t kStepsToForget = 100;
constexpr int32_t kMostDoublings = 6;
constexpr absl::Duration kFirstStepAllowance = absl::Minutes(1);
// Several heartbeats by default.
constexpr absl::Duration kSilence = absl::Seconds(1);
constexpr absl::Duration kTellAgain = absl::Seconds(1);

}  // namespace

void HangWatch::Begin(int32_t num_ranks, double predicted_step_s,
                      absl::Time now) {
  ranks_.assign(num_ranks, {.sign = std::nullopt, .heard = now});
  predicted_step_s_ = predicted_step_s;
  step_times_.clear();
  moved_ = now;
}

void HangWatch::Note(Rank rank, const RankSign& sign, absl::Time now) {
  if (ToInt(rank) < 0 || ToInt(rank) >= static_cast<int64_t>(ranks_.size())) {
    return;
  }
  Watched& watched = ranks_[ToInt(rank)];
  watched.heard = now;
  if (watched.sign == sign) return;
  watched.sign = sign;
  moved_ = now;
}

void HangWatch::NoteStep(double seconds) {
  step_times_.push_back(seconds);
  if (step_times_.size() > kStepsKept) step_times_.pop_front();
  if (++steps_since_hang_ >= kStepsToForget) num_hangs_ = 0;
}

void HangWatch::Forgive(absl::Time now) {
  moved_ = now;
  for (Watched& watched : ranks_) watched.heard = now;
}

absl::Duration HangWatch::Limit() const {
  double step_s = predicted_step_s_;
  if (!step_times_.empty()) {
    std::vector<double> sorted(step_times_.begin(), step_times_.end());
    std::sort(sorted.begin(), sorted.end());
    step_s = std::max(step_s, sorted[sorted.size() / 2]);
  }
  // The others stop up to a step after the rank that hangs, and word of it
  // takes a heartbeat and a tick.
  const absl::Duration limit =
      2 * absl::Seconds(step_s) + 0.75 * grace_ * (1 << num_hangs_);
  const bool is_first =
      std::any_of(ranks_.begin(), ranks_.end(), [](const Watched& watched) {
        return watched.sign->activity == RankActivity::kFirstStep;
      });
  return is_first ? limit + kFirstStepAllowance : limit;
}

bool HangWatch::StandsStill(absl::Time now) {
  if (ranks_.empty() || grace_ <= absl::ZeroDuration()) return false;
  const bool all_step =
      std::all_of(ranks_.begin(), ranks_.end(), [](const Watched& watched) {
        return watched.sign.has_value() &&
               (watched.sign->activity == RankActivity::kFirstStep ||
                watched.sign->activity == RankActivity::kStepping);
      });
  if (!all_step || now - moved_ <= Limit() || now - told_ < kTellAgain) {
    return false;
  }
  // Told again, it is the same hang.
  if (told_ < moved_) {
    num_hangs_ = std::min(num_hangs_ + 1, kMostDoublings);
    steps_since_hang_ = 0;
  }
  told_ = now;
  return true;
}

std::vector<std::optional<RankProgress>> HangWatch::Progress(
    absl::Time now) const {
  std::vector<std::optional<RankProgress>> progress;
  for (const Watched& watched : ranks_) {
    const bool speaks =
        watched.sign.has_value() && now - watched.heard <= kSilence;
    progress.push_back(speaks ? std::optional(watched.sign->progress)
                              : std::nullopt);
  }
  return progress;
}

}  // namespace millrace
