#include "planner/cost/host_sharing.h"

#include <algorithm>
#include <cmath>

namespace millrace {

std::vector<int32_t> RanksBeside(const Layout& layout, Rank rank,
                                 int32_t ranks_per_host) {
  std::vector<int32_t> num_ranks(static_cast<size_t>(layout.pipeline));
  const int32_t begin = ToInt(rank) / ranks_per_host * ranks_per_host;
  const int32_t end = std::min(begin + ranks_per_host, layout.num_ranks());
  for (int32_t i = begin; i < end; ++i) {
    ++num_ranks[static_cast<size_t>(CoordinatesOf(layout, Rank{i}).pipeline)];
  }
  return num_ranks;
}

bool SharesCores(std::span<const double> factors) {
  return !factors.empty() && factors.back() > 1.02;
}

double SharingSlowdown(std::span<const double> factors, int32_t num_busy) {
  const auto most = static_cast<int32_t>(factors.size());
  if (num_busy <= most) {
    return factors[static_cast<size_t>(std::max(num_busy, 1) - 1)];
  }
  const double all = most / factors.back();  // Done together, of one alone.
  const double before =
      most > 1 ? (most - 1) / factors[static_cast<size_t>(most) - 2] : 0;
  const double each_more = std::clamp(all - before, 0.0, 1.0);
  return num_busy / (all + (num_busy - most) * each_more);
}

double CommunicationSlowdown(std::span<const double> factors,
                             int32_t num_busy) {
  return std::max(1.0, SharingSlowdown(factors, num_busy) / factors.back());
}

double NumComputing(const Layout& layout, const HardwareProfile& profile) {
  const std::vector<double>& factors = profile.compute_contention;
  if (!SharesCores(factors)) return 0;
  const double num_microbatches = layout.most_microbatches();
  return num_microbatches / (num_microbatches + layout.pipeline - 1) *
         std::min(layout.num_ranks(), profile.ranks_per_host);
}

double ContentionOf(double num_computing, const HardwareProfile& profile) {
  if (num_computing <= 1) return 1;
  const std::vector<double>& factors = profile.compute_contention;
  const double position =
      std::min(num_computing, static_cast<double>(factors.size())) - 1;
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, factors.size() - 1);
  const double share = position - static_cast<double>(below);
  return factors[below] * (1 - share) + factors[above] * share;
}

OverlapFactors OverlapOf(double num_computing, const HardwareProfile& profile) {
  OverlapFactors overlap = profile.overlap;
  if (num_computing == 0) return overlap;
  const std::vector<double>& factors = profile.compute_contention;
  const auto num_alone = static_cast<int32_t>(std::ceil(num_computing));
  overlap.compute *= SharingSlowdown(factors, 2 * num_alone) /
                     SharingSlowdown(factors, num_alone);
  overlap.communication *= CommunicationSlowdown(factors, 2 * num_alone);
  return overlap;
}

}  // namespace millrace
