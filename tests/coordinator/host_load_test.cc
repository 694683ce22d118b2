#include "coordinator/host_load.h"

#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// Goal: what others had is told apart from what ranks had, by host. Method: two
// hosts of two processors and two ranks, one with a guest.
TEST(HostLoadTest, FindsTheBusiestHost) {
  const RankLoad alone = {
      .seconds = 10, .busy_s = 15, .own_s = 7.5, .num_processors = 2};
  RankLoad beside = alone;
  beside.busy_s = 19;
  EXPECT_NEAR(OthersShare(std::vector<RankLoad>(4, alone), 2), 0, 1e-12);
  const std::vector<RankLoad> both = {alone, alone, beside, beside};
  EXPECT_NEAR(OthersShare(both, 2), 0.2, 1e-12);
  EXPECT_NEAR(OthersShare(std::vector<RankLoad>{alone}, 2), 0.375, 1e-12);
  // Clocks of one rank may have run on a little.
  RankLoad later = beside;
  later.seconds = 20;
  later.busy_s = 38;
  later.own_s = 15;
  EXPECT_NEAR(OthersShare(std::vector<RankLoad>{beside, later}, 2), 0.2, 1e-12);
}

// Goal: what is not known is not taken for quiet. Method: a rank that does not
// say, one of a short time, none.
TEST(HostLoadTest, SaysWhatIsNotKnown) {
  const RankLoad known = {
      .seconds = 10, .busy_s = 15, .own_s = 7.5, .num_processors = 2};
  EXPECT_EQ(OthersShare(std::vector<RankLoad>{known, {}}, 2), -1);
  RankLoad brief = known;
  brief.seconds = 0.1;
  EXPECT_EQ(OthersShare(std::vector<RankLoad>{brief}, 2), -1);
  EXPECT_EQ(OthersShare({}, 2), -1);
}

}  // namespace
}  // namespace millrace
