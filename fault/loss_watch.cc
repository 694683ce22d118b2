#include "fault/loss_watch.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace millrace {
namespace {

constexpr size_t kWindow = 64;
constexpr size_t kLeast = 20;
constexpr int64_t kMostInRow = 5;  // Spikes.
constexpr double kDeviations = 8;
constexpr double kLeastShare = 0.15;
constexpr double kDeviationOfMedian = 1.4826;  // For a normal distribution.

double MedianOfLosses(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

bool LossWatch::FollowsSpikes(int64_t step) const {
  for (int64_t before = step - kMostInRow; before < step; ++before) {
    if (!spikes_.contains(before)) return false;
  }
  return true;
}

std::optional<LossSpike> LossWatch::Note(int64_t step, double loss) {
  while (!losses_.empty() && losses_.back().step >= step) losses_.pop_back();
  if (!std::isfinite(loss)) return std::nullopt;
  if (losses_.size() >= kLeast) {
    std::vector<double> window;
    const size_t first = losses_.size() - std::min(losses_.size(), kWindow);
    for (size_t i = first; i < losses_.size(); ++i) {
      window.push_back(losses_[i].loss);
    }
    const double usual = MedianOfLosses(window);
    for (double& other : window) other = std::abs(other - usual);
    const double deviation =
        kDeviationOfMedian * MedianOfLosses(std::move(window));
    const double limit = usual + std::max(kDeviations * deviation,
                                          kLeastShare * std::abs(usual));
    if (loss > limit && !FollowsSpikes(step)) {
      spikes_.insert(step);
      if (spikes_.size() > kWindow) spikes_.erase(spikes_.begin());
      return LossSpike{
          .step = step, .loss = loss, .usual = usual, .limit = limit};
    }
    if (loss > limit) losses_.clear();
  }
  losses_.push_back({.step = step, .loss = loss});
  if (losses_.size() > kKept) losses_.pop_front();
  return std::nullopt;
}

}  // namespace millrace
