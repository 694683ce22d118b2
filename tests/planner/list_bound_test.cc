#include "planner/list_bound.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/list_greedy.h"
#include "planner/list_schedule.h"
#include "planner/pass_order.h"
#include "tests/planner/list_testing.h"

namespace millrace {
namespace {

// Goal: no order is quicker than the bound says, with the memory that it holds
// itself. Method: thousands of random pipelines, chunks anywhere, in orders of
// random policies and in the known ones.
TEST(LowerBoundOfMakespanTest, NoOrderIsQuicker) {
  int num_known = 0, num_by_memory = 0;
  for (uint32_t seed = 0; seed < 6000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto [costs, memory_bytes, policy] = RandomOrderingOf(random);
    std::vector<PassOrder> orders = {
        GreedyOrder(costs, memory_bytes, 0, policy),
        GreedyOrder(costs, {}, 0, policy)};
    for (const Schedule schedule :
         {Schedule::kOneForwardOneBackward, Schedule::kZeroBubble,
          Schedule::kInterleaved}) {
      auto known = OrderOf(schedule, costs);
      if (!known.ok()) continue;
      ++num_known;
      orders.push_back(*std::move(known));
    }
    for (const PassOrder& order : orders) {
      const absl::StatusOr<OrderTimes> times = TimeOrder(costs, order);
      ASSERT_TRUE(times.ok()) << times.status();
      const double bound_s = LowerBoundOfMakespan(costs, times->peak_bytes);
      const double without_s = LowerBoundOfMakespan(costs, {});
      EXPECT_LE(bound_s, times->makespan_s * (1 + 1e-9));
      EXPECT_LE(without_s, bound_s);
      if (bound_s > without_s * 1.01) ++num_by_memory;
    }
  }
  EXPECT_GT(num_known, 2000);
  EXPECT_GT(num_by_memory, 1000);
}

// Goal: bounds where nothing is lost are the makespan. Method: by hand; two
// stages, equal passes of a second. Without limits stage 1 waits for a forward
// pass and then has twelve passes to run. With memory for one micro-batch at a
// time each holds stage 0 for its forward pass, both of stage 1 and its input
// and weight gradient.
TEST(LowerBoundOfMakespanTest, IsWhatSmallPipelinesTake) {
  const PipelineCosts costs = AlikePipeline(2, 1, 4);
  EXPECT_DOUBLE_EQ(LowerBoundOfMakespan(costs, {}), 1 + 4 * 3);
  EXPECT_DOUBLE_EQ(LowerBoundOfMakespan(costs, {120, 120}), 4 * 5);
  const ListedSchedule listed =
      *ListSchedule(costs, {.memory_bytes = {120, 120}});
  EXPECT_DOUBLE_EQ(listed.times.makespan_s, 4 * 5);
}

// Goal: passes that hold nothing are not held back by memory. Method: by hand;
// a stage's first chunk, of two, holds nothing, and then neither does.
TEST(LowerBoundOfMakespanTest, LetsPassesThatHoldNothingRunAhead) {
  PipelineCosts costs = AlikePipeline(1, 2, 2);
  costs.chunks[0].activation_bytes = 0;
  EXPECT_DOUBLE_EQ(LowerBoundOfMakespan(costs, {60}), 6);
  costs.chunks[1].activation_bytes = 0;
  EXPECT_DOUBLE_EQ(LowerBoundOfMakespan(costs, {60}), 6);
}

}  // namespace
}  // namespace millrace
