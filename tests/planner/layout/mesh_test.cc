#include "planner/layout/mesh.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/layout.h"
#include "planner/layout/layout_constraints.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

// Goal: rank and coordinates are each other's inverse, and every group holds
// its rank at its index. Method: all ranks of an odd-shaped mesh.
TEST(MeshTest, RanksAndGroupsAgree) {
  const Layout layout{.pipeline = 3, .data = 2, .tensor = 5};
  for (int32_t i = 0; i < layout.num_ranks(); ++i) {
    const Rank rank{i};
    EXPECT_EQ(RankOf(layout, CoordinatesOf(layout, rank)), rank);
    for (Group group :
         {Group::kTensor, Group::kData, Group::kPipeline, Group::kWorld}) {
      const std::vector<Rank> members = GroupMembers(layout, group, rank);
      ASSERT_EQ(members.size(), static_cast<size_t>(GroupSize(layout, group)));
      EXPECT_EQ(members[GroupIndex(layout, group, rank)], rank)
          << GroupName(group);
    }
  }
  EXPECT_THAT(GroupMembers(layout, Group::kPipeline, Rank{1}),
              ElementsAre(Rank{1}, Rank{6}, Rank{11}));
  EXPECT_THAT(GroupMembers(layout, Group::kData, Rank{1}),
              ElementsAre(Rank{1}, Rank{16}));
}

// Goal: groups of the data axis are neighbours, and the ranks at one place of
// the groups a group of their own, beside other axes too. Method: eight data
// ranks in two groups, by hand.
TEST(MeshTest, CutsTheDataAxis) {
  const Layout layout{
      .pipeline = 2, .data = 8, .data_groups = 2, .tensor = 3, .zero = 1};
  // Tensor 1 of stage 1, data 5: place 1 of the second group.
  const Rank rank = RankOf(layout, {.pipeline = 1, .data = 5, .tensor = 1});
  ASSERT_EQ(rank, Rank{34});
  EXPECT_THAT(GroupMembers(layout, Group::kShards, rank),
              ElementsAre(Rank{28}, Rank{34}, Rank{40}, Rank{46}));
  EXPECT_THAT(GroupMembers(layout, Group::kReplicas, rank),
              ElementsAre(Rank{10}, Rank{34}));
  EXPECT_EQ(GroupIndex(layout, Group::kShards, rank), 1);
  EXPECT_EQ(GroupIndex(layout, Group::kReplicas, rank), 1);
  EXPECT_EQ(GroupStride(layout, Group::kShards), 6);
  EXPECT_EQ(GroupStride(layout, Group::kReplicas), 24);
  // A node of 24 has a group, and no two ranks of one slice.
  EXPECT_EQ(HostsOf(layout, Group::kShards, 24), 1);
  EXPECT_EQ(HostsOf(layout, Group::kReplicas, 24), 2);
  EXPECT_EQ(ShardGroup(layout), Group::kShards);
  EXPECT_THAT(CollectiveGroups(layout),
              ElementsAre(Group::kTensor, Group::kShards, Group::kReplicas));
  EXPECT_THAT(CollectiveGroups({.data = 8}),
              ElementsAre(Group::kTensor, Group::kData));
  EXPECT_EQ(NumCommunicators({.data = 8, .data_groups = 2}, 0), 3);
}

// Goal: a rank has a communicator for each axis it shares, the world only where
// no axis is the world, and one for each direction of each link.
TEST(NumCommunicatorsTest, CountsAxesAndLanes) {
  EXPECT_EQ(NumCommunicators({}, 0), 0);
  EXPECT_EQ(NumCommunicators({.data = 4}, 0), 1);
  EXPECT_EQ(NumCommunicators({.tensor = 4}, 0), 1);
  EXPECT_EQ(NumCommunicators({.data = 2, .tensor = 2}, 0), 3);
  const Layout stages{.pipeline = 3};
  EXPECT_EQ(NumCommunicators(stages, 0), 3);
  EXPECT_EQ(NumCommunicators(stages, 1), 5);
  EXPECT_EQ(NumCommunicators(stages, 2), 3);
}

// Goal: strides are the distances between ranks whose coordinates differ by
// one, and a group of several axes has the ranks of all of them. Method: a mesh
// with every axis that adds ranks, by both orders.
TEST(MeshTest, StridesFollowFromTheOrderOfAxes) {
  const Layout layout{.pipeline = 3,
                      .data = 4,
                      .tensor = 2,
                      .context = 5,
                      .expert = 8,
                      .micro_batch = 7};
  ASSERT_EQ(layout.num_ranks(), 120);
  const Mesh mesh = MeshOf(layout);
  for (const Axis axis : AxesInOrder(AxisOrder::kPipelineInsideData)) {
    SCOPED_TRACE(AxisName(axis));
    const LayoutSize& row = Describe(axis);
    EXPECT_EQ(mesh.size(axis), layout.*row.size);
    MeshCoordinates next;
    next.*row.coordinate = 1;
    EXPECT_EQ(ToInt(RankOf(layout, next)), mesh.stride(axis));
    EXPECT_EQ(GroupStride(layout, GroupOf({axis})), mesh.stride(axis));
  }
  EXPECT_EQ(mesh.size(Axis::kExpert), 8);
  EXPECT_EQ(mesh.stride(Axis::kExpert), 1);
  const Mesh outermost = MeshOf(layout, AxisOrder::kPipelineOutermost);
  EXPECT_EQ(outermost.stride(Axis::kData), 10);
  EXPECT_EQ(outermost.stride(Axis::kPipeline), 40);

  const Group replicas = GroupOf({Axis::kContext, Axis::kData});
  EXPECT_EQ(GroupName(replicas), "context+data");
  EXPECT_EQ(GroupSize(layout, replicas), 20);
  const std::vector<Rank> members = GroupMembers(layout, replicas, Rank{31});
  ASSERT_EQ(members.size(), 20u);
  EXPECT_TRUE(std::is_sorted(members.begin(), members.end()));
  for (size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(GroupIndex(layout, replicas, members[i]),
              static_cast<int32_t>(i));
    const MeshCoordinates at = CoordinatesOf(layout, members[i]);
    EXPECT_EQ(at.tensor, 1);
    EXPECT_EQ(at.pipeline, 0);
  }
}

// Goal: groups know how many hosts they span, and transfers whether they leave
// one. Method: hosts of 8 ranks by hand; groups in hosts, across them, of some
// of each host's ranks, and pipelines that cross a host's end once.
TEST(MeshTest, GroupsSpanHosts) {
  constexpr int32_t kOnHost = 8;
  const Layout two_nodes{.data = 2, .tensor = 8};
  EXPECT_EQ(HostsOf(two_nodes, Group::kTensor, kOnHost), 1);
  EXPECT_EQ(HostsOf(two_nodes, Group::kData, kOnHost), 2);
  EXPECT_EQ(HostsOf({.data = 8, .tensor = 2}, Group::kData, kOnHost), 2);
  EXPECT_EQ(HostsOf({.data = 4, .tensor = 16}, Group::kTensor, kOnHost), 2);
  EXPECT_EQ(HostsOf({.data = 4, .tensor = 16}, Group::kData, kOnHost), 4);
  EXPECT_EQ(HostsOf({.data = 16}, Group::kWorld, kOnHost), 2);
  EXPECT_EQ(HostsOf({.pipeline = 4, .data = 4}, Group::kData, kOnHost), 2);

  const Layout deep{.pipeline = 8, .tensor = 2};
  EXPECT_EQ(PairsBetweenHosts(deep, kOnHost), 2);
  EXPECT_EQ(HostsOfSlowestTransfer(deep, kOnHost), 2);
  for (int32_t stage = 0; stage < 8; ++stage) {
    // The last stage is next to the first.
    EXPECT_EQ(HostsOfTransfer(deep, stage, kOnHost), stage % 4 == 3 ? 2 : 1)
        << stage;
  }
  const Layout inside{.pipeline = 4, .data = 4, .tensor = 2};
  EXPECT_EQ(HostsOfSlowestTransfer(inside, kOnHost), 1);
  // Three stages do not divide a host, so some pipeline crosses at each.
  const Layout uneven{.pipeline = 3, .data = 8};
  EXPECT_EQ(HostsOfTransfer(uneven, 0, kOnHost), 2);
  EXPECT_EQ(HostsOfTransfer(uneven, 1, kOnHost), 2);
}

// Goal: every size has names of its own, and is pinned as it is. Method: the
// table; a layout whose sizes all differ.
TEST(MeshTest, TableTellsSizesApart) {
  std::set<std::string> names, short_names;
  Layout layout;
  int32_t size = 2;
  for (const LayoutSize& row : LayoutSizes()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    if (row.short_name != nullptr) {
      EXPECT_TRUE(short_names.insert(row.short_name).second) << row.short_name;
    }
    layout.*row.size = size++;
    if (row.axis.has_value()) {
      EXPECT_STREQ(AxisName(*row.axis), row.name);
    }
  }
  LayoutConstraints pinned;
  PinSizes(layout, &pinned);
  for (const LayoutSize& row : LayoutSizes()) {
    EXPECT_EQ(pinned.*row.pinned, layout.*row.size) << row.name;
  }
}

}  // namespace
}  // namespace millrace
