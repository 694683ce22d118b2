#include "coordinator/host_load.h"

#include <algorithm>
#include <cstddef>

namespace millrace {

double OthersShare(std::span<const RankLoad> by_rank, int32_t ranks_per_host) {
  constexpr double kLeastSeconds = 0.5;
  double most = by_rank.empty() ? -1 : 0;
  const auto per_host = static_cast<size_t>(std::max(1, ranks_per_host));
  for (size_t begin = 0; begin < by_rank.size(); begin += per_host) {
    const std::span<const RankLoad> host =
        by_rank.subspan(begin, std::min(per_host, by_rank.size() - begin));
    // Ranks look at about one time, not at the same moment: shares compare.
    double busy = 0, own = 0;
    for (const RankLoad& rank : host) {
      if (rank.num_processors < 1 || rank.seconds < kLeastSeconds) return -1;
      const double all_s = rank.seconds * rank.num_processors;
      busy += rank.busy_s / all_s / static_cast<double>(host.size());
      own += rank.own_s / all_s;
    }
    most = std::max(most, busy - own);
  }
  return most;
}

}  // namespace millrace
