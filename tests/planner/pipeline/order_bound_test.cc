#include "planner/pipeline/order_bound.h"

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/pipeline/greedy_order.h"
#include "planner/pipeline/list_schedule.h"
#include "planner/pipeline/pass_order.h"
#include "tests/planner/pipeline/order_testing.h"

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

// All orders of one chunk's passes on its stage, both gradients apart: with
// each kind's micro-batches in turn, each after what it needs of the same
// micro-batch.
void AddOrders(int32_t stage, int32_t num_microbatches,
               std::array<int32_t, 3> done, std::vector<ChunkPass>* passes,
               std::vector<std::vector<ChunkPass>>* orders) {
  constexpr ChunkPassKind kKinds[] = {ChunkPassKind::kForward,
                                      ChunkPassKind::kInputGradient,
                                      ChunkPassKind::kWeightGradient};
  if (done[2] == num_microbatches) orders->push_back(*passes);
  for (size_t k = 0; k < done.size(); ++k) {
    if (done[k] == (k == 0 ? num_microbatches : done[k - 1])) continue;
    passes->push_back({kKinds[k], stage, done[k]});
    std::array<int32_t, 3> next = done;
    ++next[k];
    AddOrders(stage, num_microbatches, next, passes, orders);
    passes->pop_back();
  }
}

// The least makespan of all orders whose stages hold no more than that.
double BruteForceMakespan(const PipelineCosts& costs,
                          const std::vector<int64_t>& memory_bytes) {
  std::vector<PassOrder> orders = {{}};
  for (int32_t s = 0; s < costs.num_stages; ++s) {
    std::vector<std::vector<ChunkPass>> of_stage;
    std::vector<ChunkPass> passes;
    AddOrders(s, costs.num_microbatches, {}, &passes, &of_stage);
    std::vector<PassOrder> longer;
    for (const PassOrder& order : orders) {
      for (const std::vector<ChunkPass>& next : of_stage) {
        if (PeakBytes(costs, next) > memory_bytes[s]) continue;
        longer.push_back(order);
        longer.back().push_back(next);
      }
    }
    orders = std::move(longer);
  }
  double least_s = std::numeric_limits<double>::infinity();
  for (const PassOrder& order : orders) {
    // Some have stages wait for each other.
    const absl::StatusOr<OrderTimes> times = TimeOrder(costs, order);
    if (times.ok()) least_s = std::min(least_s, times->makespan_s);
  }
  return least_s;
}

// Goal: the bound is not above what the very best order takes and sometimes
// just that, and list scheduling finds such an order. Method: every order of
// random pipelines of two stages and three micro-batches, and of three and two,
// in memory for one micro-batch and more.
TEST(LowerBoundOfMakespanTest, IsNotAboveTheBestOfAllOrders) {
  int num_tried = 0, num_tight = 0, num_found = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    PipelineCosts costs = RandomPipeline(random, 1, 1, 1);
    while (costs.chunks.size() < 2 + seed % 2) {
      const PipelineCosts more = RandomPipeline(random, 1, 1, 1);
      costs.stage_of_chunk.push_back(costs.num_stages++);
      costs.chunks.push_back(more.chunks.front());
    }
    costs.num_microbatches = seed % 2 == 0 ? 3 : 2;
    std::vector<int64_t> memory_bytes;
    for (int32_t s = 0; s < costs.num_stages; ++s) {
      memory_bytes.push_back(LeastBytes(costs, s) +
                             static_cast<int64_t>(random() % 4) * 100);
    }
    const double best_s = BruteForceMakespan(costs, memory_bytes);
    const double bound_s = LowerBoundOfMakespan(costs, memory_bytes);
    EXPECT_LE(bound_s, best_s * (1 + 1e-9));
    const auto listed = ListSchedule(costs, {.memory_bytes = memory_bytes});
    ASSERT_TRUE(listed.ok()) << listed.status();
    EXPECT_GE(listed->times.makespan_s, best_s * (1 - 1e-9));
    ++num_tried;
    num_tight += bound_s > best_s * (1 - 1e-9);
    num_found += listed->times.makespan_s < best_s * (1 + 1e-9);
  }
  RecordProperty("bound_is_best", num_tight);
  RecordProperty("listed_is_best", num_found);
  EXPECT_GT(num_tight, num_tried / 5);
  EXPECT_EQ(num_found, num_tried);
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
