// Which pairs of hosts are measured at the same time: the circle method of
// round-robin tournaments, by which n hosts meet in n - 1 rounds (n if n is
// odd), each host in at most one pair of a round. So no measurement shares a
// host's network with another.

#ifndef MILLRACE_WORKER_DOCTOR_TOURNAMENT_H_
#define MILLRACE_WORKER_DOCTOR_TOURNAMENT_H_

#include <cstdint>
#include <vector>

namespace millrace {

struct HostPair {
  int32_t first;   // Less than `second`.
  int32_t second;  // In [1, number of hosts).
  friend bool operator==(const HostPair&, const HostPair&) = default;
};

// Each pair of `num_hosts` once, by round. Empty below two hosts.
std::vector<std::vector<HostPair>> TournamentRounds(int32_t num_hosts);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_TOURNAMENT_H_
