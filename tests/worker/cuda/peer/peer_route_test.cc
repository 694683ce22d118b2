#include "worker/cuda/peer/peer_route.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "planner/lower/lower.h"
#include "planner/program/copy_engines.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

// With all that copy engines may do.
std::vector<Layout> Layouts() {
  std::vector<Layout> layouts = TestLayouts(Precision::kBfloat16);
  for (Layout& layout : layouts) layout.copy_engines = CopyEngineUseOf(layout);
  return layouts;
}

// Goal: all who take part in an instruction mean the same members, each its own
// place among them, and the lane that the others are on. Method: sweep layouts;
// what is the n-th on a lane of one rank is looked up on the lane of another.
TEST(PeerRouteTest, MembersAgree) {
  int num_routes = 0;
  for (const Layout& layout : Layouts()) {
    SCOPED_TRACE(LayoutToString(layout));
    const std::vector<Program> programs =
        *BuildTrainingPrograms(TestModel(), layout);
    const auto program_of = [&](Rank rank) -> const Program& {
      return programs[CoordinatesOf(layout, rank).pipeline];
    };
    for (Rank rank{0}; ToInt(rank) < layout.num_ranks();
         rank = Rank{ToInt(rank) + 1}) {
      for (const auto& lane : program_of(rank).lanes) {
        for (size_t i = 0; i < lane.size(); ++i) {
          const auto route =
              PeerRouteOf(layout, rank, program_of(rank).instructions[lane[i]]);
          if (!route.has_value()) continue;
          ++num_routes;
          ASSERT_EQ(route->members[route->index], rank);
          for (const Rank member : route->members) {
            if (member == rank) continue;
            const Program& there = program_of(member);
            const auto& its_lane =
                there.lanes[static_cast<int>(route->peer_lane)];
            ASSERT_LT(i, its_lane.size());
            const auto its =
                PeerRouteOf(layout, member, there.instructions[its_lane[i]]);
            ASSERT_TRUE(its.has_value());
            EXPECT_TRUE(std::is_permutation(
                its->members.begin(), its->members.end(),
                route->members.begin(), route->members.end()));
            EXPECT_EQ(its->members[its->index], member);
            EXPECT_EQ(its->peer_lane, route->lane);
          }
        }
      }
    }
  }
  EXPECT_GT(num_routes, 1000);
}

// Goal: each rank reaches those who reach it, of its own row and column of the
// mesh, and nobody without copy engines. Method: by hand, two stages of two
// tensor ranks.
TEST(PeerRouteTest, RanksToReachAreThoseItSharesSomethingWith) {
  Layout layout{.pipeline = 2, .tensor = 2, .num_microbatches = 2};
  const auto reached = [&](Rank rank) {
    const std::vector<Program> programs =
        *BuildTrainingPrograms(TestModel(), layout);
    const Program* const own = &programs[CoordinatesOf(layout, rank).pipeline];
    return RanksToReach(layout, rank, std::vector<const Program*>{own});
  };
  using Ranks = std::set<Rank>;
  EXPECT_EQ(reached(Rank{0}), Ranks{});
  layout.copy_engines = CopyEngineUseOf(layout);
  EXPECT_EQ(reached(Rank{0}), (Ranks{Rank{1}, Rank{2}}));
  EXPECT_EQ(reached(Rank{3}), (Ranks{Rank{1}, Rank{2}}));
  layout.copy_engines.transfers = false;
  EXPECT_EQ(reached(Rank{0}), (Ranks{Rank{1}}));
}

// Goal: peers are shown the memory that they write into and no other. Method:
// by hand. Parameters that stay whole are gathered where they are kept, those
// of ZeRO 3 and all activations in the step's arena; sums need scratch memory.
TEST(PeerRouteTest, NamesTheMemoryThatPeersWrite) {
  const auto written = [](Layout layout) {
    layout.precision = Precision::kBfloat16;
    layout.copy_engines = CopyEngineUseOf(layout);
    const std::vector<Program> programs =
        *BuildTrainingPrograms(TestModel(), layout);
    return WrittenMemory(layout, Rank{0},
                         std::vector<const Program*>{&programs[0]});
  };
  EXPECT_EQ(written({.data = 2}), WrittenByPeers{});
  EXPECT_EQ(written({.data = 2, .zero = 1}),
            WrittenByPeers{.persistent_arena = true});
  EXPECT_EQ(written({.data = 2, .zero = 3}),
            WrittenByPeers{.step_arena = true});
  EXPECT_EQ(written({.pipeline = 2}), WrittenByPeers{.step_arena = true});
  EXPECT_EQ(written({.tensor = 2}),
            (WrittenByPeers{.step_arena = true, .scratch = true}));
  Layout by_nccl{.data = 2, .tensor = 2, .zero = 1};
  const std::vector<Program> programs =
      *BuildTrainingPrograms(TestModel(), by_nccl);
  EXPECT_EQ(WrittenMemory(by_nccl, Rank{0},
                          std::vector<const Program*>{&programs[0]}),
            WrittenByPeers{});
}

// Goal: there is room for the parts of all peers, of the largest sum on the
// lane. Method: by hand; four tensor ranks reduce 12 tokens of 20 numbers and
// less, two bytes each.
TEST(PeerRouteTest, ScratchHoldsTheLargestSum) {
  Layout layout{.tensor = 4, .precision = Precision::kBfloat16};
  layout.copy_engines = CopyEngineUseOf(layout);
  const std::vector<Program> programs =
      *BuildTrainingPrograms(TestModel(), layout);
  const auto bytes = ScratchBytesOf(layout, Rank{2},
                                    std::vector<const Program*>{&programs[0]});
  for (int lane = 0; lane < kNumLanes; ++lane) {
    EXPECT_EQ(bytes[lane],
              static_cast<Lane>(lane) == Lane::kTensorComm ? 3 * 3 * 20 * 2 : 0)
        << LaneName(static_cast<Lane>(lane));
  }
}

}  // namespace
}  // namespace millrace
