#include "planner/cost/host_sharing.h"

#include <algorithm>

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
  return factors.back() > 1.02;
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

}  // namespace millrace
