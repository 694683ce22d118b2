#include "fault/loss_watch.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace millrace {
namespace {

constexpr size_t kWindow = 64;
constexpr size_t kLeast = 20;
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

std::optional<LossSpike> LossWatch::Note(int64_t step, double loss) {
  if (!std::isfinite(loss)) return std::nullopt;
  if (losses_.size() >= kLeast) {
    const double usual = MedianOfLosses({losses_.begin(), losses_.end()});
    std::vector<double> distances;
    for (const double other : losses_) {
      distances.push_back(std::abs(other - usual));
    }
    const double deviation =
        kDeviationOfMedian * MedianOfLosses(std::move(distances));
    const double limit = usual + std::max(kDeviations * deviation,
                                          kLeastShare * std::abs(usual));
    if (loss > limit) {
      return LossSpike{
          .step = step, .loss = loss, .usual = usual, .limit = limit};
    }
  }
  losses_.push_back(loss);
  if (losses_.size() > kWindow) losses_.pop_front();
  return std::nullopt;
}

}  // namespace millrace
