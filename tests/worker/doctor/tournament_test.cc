#include "worker/doctor/tournament.h"

#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// Goal: every pair of hosts is measured once, and no host twice at a time.
// Method: all sizes up to 65, so that odd, even and the smallest are there.
TEST(TournamentTest, EveryPairMeetsOnceAndNoHostTwiceInARound) {
  for (int32_t num_hosts = 0; num_hosts <= 65; ++num_hosts) {
    const auto rounds = TournamentRounds(num_hosts);
    std::set<std::pair<int32_t, int32_t>> met;
    for (const std::vector<HostPair>& round : rounds) {
      std::set<int32_t> busy;
      for (const HostPair& pair : round) {
        EXPECT_LE(0, pair.first);
        EXPECT_LT(pair.first, pair.second);
        EXPECT_LT(pair.second, num_hosts);
        EXPECT_TRUE(busy.insert(pair.first).second);
        EXPECT_TRUE(busy.insert(pair.second).second);
        EXPECT_TRUE(met.insert({pair.first, pair.second}).second);
      }
    }
    EXPECT_EQ(met.size(), num_hosts * (num_hosts - 1) / 2u);
    EXPECT_LE(rounds.size(), static_cast<size_t>(num_hosts));
  }
}

}  // namespace
}  // namespace millrace
