#include "fault/replica_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Goal: only what data replicas hold alike is compared, a majority outvotes,
// and two that differ are both in doubt.
TEST(ReplicaCheckTest, OutvotesAndDoubts) {
  EXPECT_FALSE(HasReplicas({.pipeline = 4}));
  EXPECT_TRUE(HasReplicas({.data = 2}));
  EXPECT_FALSE(HasReplicas({.data = 2, .zero = 1}));
  EXPECT_FALSE(HasReplicas({.data = 2, .zero = 3}));
  EXPECT_TRUE(HasReplicas({.data = 4, .data_groups = 2, .zero = 1}));

  const Layout four{.data = 4};
  EXPECT_TRUE(CompareReplicas(four, {7, 7, 7, 7}).agree);
  const ReplicaVerdict one = CompareReplicas(four, {7, 7, 8, 7});
  EXPECT_FALSE(one.agree);
  EXPECT_THAT(one.minority, ElementsAre(Rank{2}));
  EXPECT_THAT(one.undecided, IsEmpty());
  const ReplicaVerdict half = CompareReplicas(four, {7, 7, 8, 8});
  EXPECT_THAT(half.minority, IsEmpty());
  EXPECT_THAT(half.undecided, ElementsAre(Rank{0}, Rank{1}, Rank{2}, Rank{3}));
  const Layout two{.data = 2};
  EXPECT_THAT(CompareReplicas(two, {1, 2}).undecided,
              ElementsAre(Rank{0}, Rank{1}));
}

// Goal: ranks of other stages and tensor shards hold other elements and are not
// compared. Method: every rank has its group's hash but one.
TEST(ReplicaCheckTest, ComparesWithinDataGroups) {
  const Layout layout{.pipeline = 2, .data = 3, .tensor = 2};
  std::vector<uint64_t> hashes;
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    const MeshCoordinates at = CoordinatesOf(layout, Rank{rank});
    hashes.push_back(static_cast<uint64_t>(10 * at.pipeline + at.tensor));
  }
  EXPECT_TRUE(CompareReplicas(layout, hashes).agree);
  hashes[5] += 1;
  EXPECT_THAT(CompareReplicas(layout, hashes).minority, ElementsAre(Rank{5}));
}

// Goal: with hybrid sharding ranks are compared that have the same slices in
// their groups.
TEST(ReplicaCheckTest, ComparesSlicesAcrossGroups) {
  const Layout layout{.data = 6, .data_groups = 3, .zero = 2};
  std::vector<uint64_t> hashes = {3, 4, 3, 4, 3, 4};
  EXPECT_TRUE(CompareReplicas(layout, hashes).agree);
  hashes[3] = 3;
  EXPECT_THAT(CompareReplicas(layout, hashes).minority, ElementsAre(Rank{3}));
}

// Goal: of parameters that were gathered, each slice is compared over all data
// ranks, its owner's own with them. Method: two groups of two slices; a copy
// differs, an owner's own, and with two ranks either.
TEST(ReplicaCheckTest, ComparesWhatWasGathered) {
  EXPECT_FALSE(HasGathered({.data = 2}));
  EXPECT_TRUE(HasGathered({.data = 2, .zero = 1}));
  EXPECT_TRUE(HasGathered({.data = 4, .data_groups = 2, .zero = 2}));
  EXPECT_FALSE(HasGathered({.data = 4, .data_groups = 4, .zero = 1}));
  EXPECT_FALSE(HasGathered({.data = 2, .zero = 3}));

  const Layout layout{.data = 4, .data_groups = 2, .tensor = 2, .zero = 1};
  std::vector<std::vector<uint64_t>> hashes;
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    const auto tensor =
        static_cast<uint64_t>(CoordinatesOf(layout, Rank{rank}).tensor);
    hashes.push_back({10 + tensor, 20 + tensor});
  }
  EXPECT_TRUE(CompareGathered(layout, hashes).agree);
  hashes[3][0] += 1;  // Slice 0 is that of data ranks 0 and 2, ranks 0 to 5.
  EXPECT_THAT(CompareGathered(layout, hashes).minority, ElementsAre(Rank{3}));
  hashes[3][1] += 1;  // Named once.
  EXPECT_THAT(CompareGathered(layout, hashes).minority, ElementsAre(Rank{3}));
  hashes[4][0] += 1;
  EXPECT_THAT(CompareGathered(layout, hashes).minority,
              ElementsAre(Rank{3}, Rank{4}));

  const Layout two{.data = 2, .zero = 2};
  const ReplicaVerdict either =
      CompareGathered(two, std::vector<std::vector<uint64_t>>{{1, 2}, {1, 3}});
  EXPECT_FALSE(either.agree);
  EXPECT_THAT(either.undecided, ElementsAre(Rank{0}, Rank{1}));
}

}  // namespace
}  // namespace millrace
