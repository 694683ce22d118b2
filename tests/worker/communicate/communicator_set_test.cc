#include "worker/communicate/communicator_set.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "gtest/gtest.h"
#include "worker/communicate/in_process_communicator.h"

namespace millrace {
namespace {

// Goal: an axis that the planner's table calls executable has the communicators
// that the table names, and no other axis has any. Method: two ranks along each
// axis that adds ranks, as threads.
TEST(CommunicatorSetTest, ServesTheAxesAsTheTableSays) {
  for (const Axis axis : AxesInOrder(AxisOrder::kPipelineInsideData)) {
    const LayoutSize& row = Describe(axis);
    Layout layout;
    layout.*row.size = 2;
    InProcessHub hub;
    std::vector<std::thread> ranks;
    for (int32_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto factory = hub.NewFactory();
        const absl::StatusOr<CommunicatorSet> set =
            CommunicatorSet::Create(layout, Rank{rank}, *factory);
        ASSERT_TRUE(set.ok()) << row.name << ": " << set.status();
        for (const Group group : CollectiveGroups(layout)) {
          EXPECT_EQ(set->ForCollective(group) != nullptr,
                    group == GroupOf({axis}))
              << row.name << ", group " << GroupName(group);
        }
        EXPECT_EQ(
            row.execution == Execution::kCollectives,
            absl::c_linear_search(CollectiveGroups(layout), GroupOf({axis})))
            << row.name;
        for (const Direction direction :
             {Direction::kToNext, Direction::kToPrevious}) {
          EXPECT_EQ(set->ForTransfer(direction) != nullptr,
                    row.execution == Execution::kTransfers)
              << row.name;
        }
        EXPECT_NE(set->ForCollective(Group::kWorld), nullptr) << row.name;
      });
    }
    for (std::thread& thread : ranks) thread.join();
  }
}

}  // namespace
}  // namespace millrace
