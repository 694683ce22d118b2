// Computes how busy other processes kept the hosts while ranks trained.

#ifndef MILLRACE_COORDINATOR_HOST_LOAD_H_
#define MILLRACE_COORDINATOR_HOST_LOAD_H_

#include <cstdint>
#include <span>

namespace millrace {

// The load that a rank saw up to a measured step.
struct RankLoad {
  double seconds = 0;
  double busy_s = 0;           // All processors of its host, for any process.
  double own_s = 0;            // For the rank.
  int32_t num_processors = 0;  // On its host; 0: not known.
};

// The share of a host's processors that processes other than its ranks kept
// busy, for the host where it is largest. `by_rank`: neighbours in rank order
// share a host. -1 if a rank does not know, or looked for less than half a
// second, of which counts of hundredths say too little.
double OthersShare(std::span<const RankLoad> by_rank, int32_t ranks_per_host);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_HOST_LOAD_H_
