#include "worker/doctor/tournament.h"

#include <algorithm>

namespace millrace {

std::vector<std::vector<HostPair>> TournamentRounds(int32_t num_hosts) {
  std::vector<std::vector<HostPair>> rounds;
  if (num_hosts < 2) return rounds;
  // An odd number of hosts gets one that is not there: who meets it rests.
  const int32_t num_seats = num_hosts + num_hosts % 2;
  // The last seat stays, the others move by one seat a round.
  const int32_t num_moving = num_seats - 1;
  for (int32_t round = 0; round < num_moving; ++round) {
    std::vector<HostPair>& pairs = rounds.emplace_back();
    for (int32_t i = 0; i < num_seats / 2; ++i) {
      const int32_t a = i == 0 ? num_moving : (round + i) % num_moving;
      const int32_t b = i == 0 ? round : (round - i + num_moving) % num_moving;
      if (std::max(a, b) < num_hosts) {
        pairs.push_back({std::min(a, b), std::max(a, b)});
      }
    }
  }
  return rounds;
}

}  // namespace millrace
