#include "planner/learn/outliers.h"

#include <algorithm>
#include <cmath>

#include "base/statistics.h"

namespace millrace {

std::vector<bool> AreCredible(std::span<const double> log_ratios) {
  // The standard deviation of Gaussian noise is so many times its median
  // absolute deviation.
  constexpr double kGaussian = 1.4826;
  constexpr double kCut = 3;
  constexpr double kLeastScatter = 0.05;
  std::vector<bool> credible(log_ratios.size(), true);
  if (log_ratios.size() < 2) return credible;
  std::vector<double> votes(log_ratios.size() == 2 ? 3 : log_ratios.size(), 0);
  std::copy(log_ratios.begin(), log_ratios.end(), votes.begin());
  const double median = MedianOf(votes);
  for (double& vote : votes) vote = std::fabs(vote - median);
  const double allowed =
      kCut * std::max(kGaussian * MedianOf(votes), kLeastScatter);
  for (size_t i = 0; i < log_ratios.size(); ++i) {
    credible[i] = std::fabs(log_ratios[i] - median) <= allowed;
  }
  return credible;
}

}  // namespace millrace
