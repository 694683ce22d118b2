// Which rank holds the others up, by where all ranks' time went. Ranks that
// wait show it as communication or bubble, so the time that counts is a rank's
// own: compute, data, checkpoints, validation and what is left over.

#ifndef MILLRACE_COORDINATOR_WATCH_SLOWEST_RANK_H_
#define MILLRACE_COORDINATOR_WATCH_SLOWEST_RANK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/watch/run_follower.h"

namespace millrace {

struct SlowestRank {
  int64_t rank = 0;
  std::string host;   // Empty: not known.
  double excess = 0;  // 0.2: it works 20 % longer than the median of its like.
  std::string why;    // The part that grew most: "compute +25 %".
};

// Compares each rank with the ranks of its stage, which do the same work. A
// rank that is alone in its stage has none to be compared with. Nothing if no
// rank works `kNoticed` longer than the median.
inline constexpr double kNoticed = 0.05;
std::optional<SlowestRank> FindSlowestRank(
    const std::vector<WatchedRank>& ranks);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_WATCH_SLOWEST_RANK_H_
