#include "fault/slow_rank.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "base/check.h"

namespace millrace {
namespace {

constexpr int32_t kWarmUpSteps = 2;
constexpr double kLeastBriefSeconds = 0.025;
constexpr double kLeastLastingSeconds = 0.1;
constexpr size_t kSamplesKept = 256;
constexpr size_t kLeastToCompare = 4;
constexpr size_t kFirstSamples = 24;
constexpr size_t kShortWindow = 8;
constexpr size_t kLongWindow = 24;
const double kHalfAgain = std::log(1.5);
const double kLeastNamed = std::log(1.08);
const double kClearlyAbove = std::log(1.04);
constexpr size_t kLeastClearlyAbove = 18;
constexpr double kStandardErrors = 6.5;
constexpr double kOutlier = 3;  // Standard deviations.
constexpr double kSigmaOfMad = 1.4826;

// The lower one of an even number.
double LowerMedianOf(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void SlowRankWatch::Begin(std::vector<int32_t> stage_of,
                          std::vector<Stage> stages) {
  stages_ = std::move(stages);
  ranks_.clear();
  for (const int32_t stage : stage_of) {
    CHECK(stage >= 0 && stage < static_cast<int32_t>(stages_.size()));
    ranks_.push_back({.stage = stage});
  }
}

std::optional<SlowRank> SlowRankWatch::Note(Rank rank, double compute_s) {
  if (ToInt(rank) < 0 || ToInt(rank) >= static_cast<int64_t>(ranks_.size())) {
    return std::nullopt;
  }
  Watched& watched = ranks_[ToInt(rank)];
  const double predicted_s = stages_[watched.stage].compute_s;
  if (predicted_s <= 0 || compute_s <= 0 ||
      ++watched.num_noted <= kWarmUpSteps) {
    return std::nullopt;
  }
  const bool has_brief =
      AddStep(compute_s, predicted_s, kLeastBriefSeconds, &watched.brief);
  if (AddStep(compute_s, predicted_s, kLeastLastingSeconds, &watched.lasting)) {
    const std::deque<double>& samples = watched.lasting.samples;
    watched.median = LowerMedianOf({samples.begin(), samples.end()});
    if (samples.size() == kFirstSamples) watched.first_median = watched.median;
  } else if (!has_brief) {
    return std::nullopt;
  }
  return Judge(rank);
}

// Returns whether the step completes a sample.
bool SlowRankWatch::AddStep(double measured_s, double predicted_s,
                            double least_seconds, Samples* series) {
  series->measured_s += measured_s;
  series->predicted_s += predicted_s;
  if (series->measured_s < least_seconds) return false;
  std::deque<double>& samples = series->samples;
  samples.push_back(std::log(series->measured_s / series->predicted_s));
  series->measured_s = series->predicted_s = 0;
  if (samples.size() > kSamplesKept) samples.pop_front();
  // Differences of neighbours know nothing of a rank that became slow.
  std::vector<double> differences;
  for (size_t i = 1; i < samples.size(); ++i) {
    differences.push_back(std::abs(samples[i] - samples[i - 1]));
  }
  if (!differences.empty()) {
    series->scatter =
        kSigmaOfMad * LowerMedianOf(std::move(differences)) / std::sqrt(2.0);
  }
  return true;
}

std::optional<double> SlowRankWatch::LearntFactor(const Watched& rank) const {
  std::vector<double> alike;
  std::vector<double> others;
  size_t num_alike = 0;
  for (const Watched& other : ranks_) {
    num_alike += other.stage == rank.stage;
    if (other.lasting.samples.size() < kLeastToCompare) continue;
    (other.stage == rank.stage ? alike : others).push_back(other.median);
  }
  if (num_alike > 1) {
    if (alike.size() < num_alike) return std::nullopt;
    return LowerMedianOf(std::move(alike));
  }
  // Alone in its stage, whose prediction may be off otherwise than others' are.
  std::optional<double> learnt;
  if (rank.first_median != 0) learnt = rank.first_median;
  if (!others.empty()) {
    const double bound = LowerMedianOf(std::move(others)) + kHalfAgain;
    learnt = std::min(learnt.value_or(bound), bound);
  }
  return learnt;
}

double SlowRankWatch::UsualScatter(Samples Watched::*samples) const {
  std::vector<double> scatters;
  for (const Watched& rank : ranks_) {
    const Samples& series = rank.*samples;
    if (series.samples.size() > 1) scatters.push_back(series.scatter);
  }
  return scatters.empty() ? 0 : LowerMedianOf(std::move(scatters));
}

std::optional<SlowRank> SlowRankWatch::Judge(Rank rank) {
  Watched& watched = ranks_[ToInt(rank)];
  if (watched.brief.samples.size() < kShortWindow) return std::nullopt;
  const std::optional<double> learnt = LearntFactor(watched);
  if (!learnt.has_value()) return std::nullopt;
  const auto excess_of = [&](const Samples& series, size_t window) {
    const std::deque<double>& samples = series.samples;
    std::vector<double> excess(samples.end() - static_cast<ptrdiff_t>(std::min(
                                                   window, samples.size())),
                               samples.end());
    for (double& value : excess) value -= *learnt;
    return excess;
  };
  const auto count_above = [](const std::vector<double>& excess, double limit) {
    return static_cast<size_t>(
        std::count_if(excess.begin(), excess.end(),
                      [limit](double value) { return value > limit; }));
  };
  const auto limit_of = [](double scatter, size_t window) {
    return kStandardErrors * scatter / std::sqrt(static_cast<double>(window));
  };
  const double brief_limit =
      limit_of(UsualScatter(&Watched::brief), kShortWindow);
  const double scatter = UsualScatter(&Watched::lasting);
  const std::vector<double> brief = excess_of(watched.brief, kShortWindow);
  const std::vector<double> lasting = excess_of(watched.lasting, kLongWindow);
  if (lasting.empty()) return std::nullopt;
  const double lasting_median = LowerMedianOf(lasting);
  if (watched.named) {
    if (lasting.size() < kLongWindow || lasting_median > kClearlyAbove ||
        LowerMedianOf(brief) > kClearlyAbove) {
      return std::nullopt;
    }
    watched.named = false;
    return SlowRank{.rank = rank, .recovered = true};
  }
  if (count_above(brief, std::max(kHalfAgain, brief_limit)) + 1 >=
      kShortWindow) {
    watched.named = true;
    return SlowRank{.rank = rank,
                    .factor = std::exp(LowerMedianOf(brief)),
                    .num_samples = static_cast<int64_t>(kShortWindow)};
  }
  double mean = 0;
  for (const double value : lasting) {
    mean += std::clamp(value, lasting_median - kOutlier * scatter,
                       lasting_median + kOutlier * scatter) /
            static_cast<double>(lasting.size());
  }
  if (lasting.size() == kLongWindow &&
      mean > std::max(kLeastNamed, limit_of(scatter, kLongWindow)) &&
      count_above(lasting, kClearlyAbove) >= kLeastClearlyAbove) {
    watched.named = true;
    return SlowRank{.rank = rank,
                    .factor = std::exp(mean),
                    .num_samples = static_cast<int64_t>(kLongWindow)};
  }
  return std::nullopt;
}

}  // namespace millrace
