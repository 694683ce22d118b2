#include "planner/cost/host_sharing.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace {
namespace {

// Goal: who is on a rank's host, by stage. Method: by hand; three replicas of
// two stages, of two tensor ranks each, on hosts of five: stages 0 0 1 1 0,
// then 0 1 1 0 0, then 1 1.
TEST(HostSharingTest, RanksBesideAreThoseOfTheHost) {
  const Layout layout{.pipeline = 2, .data = 3, .tensor = 2};
  using Ranks = std::vector<int32_t>;
  EXPECT_EQ(RanksBeside(layout, Rank{0}, 5), (Ranks{3, 2}));
  EXPECT_EQ(RanksBeside(layout, Rank{4}, 5), (Ranks{3, 2}));
  EXPECT_EQ(RanksBeside(layout, Rank{5}, 5), (Ranks{3, 2}));
  EXPECT_EQ(RanksBeside(layout, Rank{11}, 5), (Ranks{0, 2}));
  EXPECT_EQ(RanksBeside(layout, Rank{2}, 1), (Ranks{0, 1}));
}

// Goal: as many as were measured are slowed as measured; more share what there
// is. Method: by hand; four ranks on two cores, on eight and on their own.
TEST(HostSharingTest, MoreThanMeasuredShareTheCores) {
  const std::vector<double> two_cores = {1, 1, 1.5, 2};
  EXPECT_TRUE(SharesCores(two_cores));
  EXPECT_EQ(SharingSlowdown(two_cores, 0), 1);
  EXPECT_EQ(SharingSlowdown(two_cores, 3), 1.5);
  EXPECT_DOUBLE_EQ(SharingSlowdown(two_cores, 6), 3);
  EXPECT_DOUBLE_EQ(CommunicationSlowdown(two_cores, 6), 1.5);
  EXPECT_EQ(CommunicationSlowdown(two_cores, 2), 1);
  // The fourth rank added nine tenths of a core, and so do those after it.
  const std::vector<double> eight_cores = {1, 1.05, 1.08, 4 / 3.7};
  EXPECT_DOUBLE_EQ(SharingSlowdown(eight_cores, 6),
                   6 / (3.7 + 2 * (3.7 - 3 / 1.08)));
  const std::vector<double> own = {1, 1, 1.001};
  EXPECT_FALSE(SharesCores(own));
  EXPECT_NEAR(SharingSlowdown(own, 6), 1, 3e-3);
  EXPECT_EQ(SharingSlowdown(std::vector<double>{1}, 2), 1);
}

// Goal: the factors of a whole step follow from how many ranks compute at once
// on average. Method: by hand, on a host of four ranks and two cores.
TEST(HostSharingTest, StepsAreSlowedByRanksThatComputeAtOnce) {
  HardwareProfile profile;
  profile.ranks_per_host = 4;
  profile.compute_contention = {1, 1, 1.5, 2};
  profile.overlap = {.compute = 1.1, .communication = 1.2};
  const Layout replicas{.data = 8, .num_microbatches = 3};
  EXPECT_EQ(NumComputing(replicas, profile), 4);
  EXPECT_EQ(ContentionOf(4, profile), 2);
  // Three micro-batches through two stages: three quarters of the time.
  const Layout stages{.pipeline = 2, .data = 2, .num_microbatches = 3};
  EXPECT_EQ(NumComputing(stages, profile), 3);
  EXPECT_EQ(ContentionOf(3, profile), 1.5);
  EXPECT_DOUBLE_EQ(ContentionOf(3.5, profile), 1.75);
  // Eight busy threads on two cores take four times as long as one.
  const OverlapFactors overlap = OverlapOf(4, profile);
  EXPECT_DOUBLE_EQ(overlap.compute, 1.1 * 4 / 2);
  EXPECT_DOUBLE_EQ(overlap.communication, 1.2 * 4 / 2);
  profile.compute_contention = {1, 1, 1.001, 1.001};
  EXPECT_EQ(NumComputing(replicas, profile), 0);
  EXPECT_EQ(ContentionOf(0, profile), 1);
  EXPECT_EQ(OverlapOf(0, profile), profile.overlap);
}

}  // namespace
}  // namespace millrace
