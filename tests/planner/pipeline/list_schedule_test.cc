#include "planner/pipeline/list_schedule.h"

#include <algorithm>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/pipeline/pass_order.h"
#include "tests/planner/pipeline/order_testing.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// The memory that 1F1B of equal stages takes on the first one, for all stages.
std::vector<int64_t> MemoryOf1F1B(const PipelineCosts& costs) {
  int64_t bytes = 0;
  for (size_t c = 0; c < costs.chunks.size(); ++c) {
    bytes += costs.chunks[c].activation_bytes;
  }
  return std::vector<int64_t>(costs.num_stages, bytes);
}

double StageSpan(const std::vector<PassSpan>& passes) {
  return passes.back().end_s - passes.front().start_s;
}

// Goal: with four stages, eight micro-batches, passes that take alike and the
// memory of 1F1B, the bubble is ZB-H1's, the least that one chunk a stage
// allows: the last stage gets its first micro-batch after three forward passes.
// Two chunks a stage halve it. Method: against the bound and the known orders.
TEST(ListScheduleTest, HasTheLeastBubbleAtTheMemoryOf1F1B) {
  const PipelineCosts costs = AlikePipeline(4, 1, 8);
  const ListLimits limits{.memory_bytes = MemoryOf1F1B(costs)};
  const ListedSchedule one = *ListSchedule(costs, limits);
  const double zero_bubble_s =
      TimeOrder(costs, OrderOf(Schedule::kZeroBubble, costs).value())
          ->makespan_s;
  EXPECT_DOUBLE_EQ(zero_bubble_s - 24, 3);
  EXPECT_DOUBLE_EQ(one.times.makespan_s, zero_bubble_s);
  EXPECT_DOUBLE_EQ(one.lower_bound_s, zero_bubble_s);
  for (const Placement placement : {Placement::kV, Placement::kTurns}) {
    const PipelineCosts halves = AlikePipeline(4, 2, 8, placement);
    const ListedSchedule two = *ListSchedule(halves, limits);
    EXPECT_DOUBLE_EQ(two.times.makespan_s - 24, 1.5);
    EXPECT_DOUBLE_EQ(two.lower_bound_s, two.times.makespan_s);
  }
}

// Goal: ZB-H1 and ZB-V come out where theirs is the placement and the memory:
// ZB-H1's makespan; of ZB-V no stage ever waits between its first pass and its
// last (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024).
// Method: sweep shapes of alike passes at the memory of 1F1B.
TEST(ListScheduleTest, ReproducesZeroBubbles) {
  for (int32_t p = 2; p <= 6; ++p) {
    for (int32_t m = 2 * p; m <= 4 * p; m += p) {
      SCOPED_TRACE(absl::StrCat(p, " stages, ", m, " micro-batches"));
      const PipelineCosts costs = AlikePipeline(p, 1, m);
      const ListLimits limits{.memory_bytes = MemoryOf1F1B(costs)};
      EXPECT_NEAR(ListSchedule(costs, limits)->times.makespan_s, 3 * m + p - 1,
                  1e-9);
      const PipelineCosts vee = AlikePipeline(p, 2, m, Placement::kV);
      const ListedSchedule schedule = *ListSchedule(vee, limits);
      EXPECT_NEAR(schedule.times.makespan_s, 3 * m + (p - 1) / 2.0, 1e-9);
      EXPECT_GE(schedule.times.makespan_s, schedule.lower_bound_s - 1e-9);
      for (int32_t s = 0; s < p; ++s) {
        EXPECT_LE(StageSpan(schedule.times.passes[s]),
                  3 * m + (p - 1) / 2.0 + 1e-9);
        EXPECT_LE(schedule.times.peak_bytes[s], limits.memory_bytes[s]);
      }
    }
  }
}

// Goal: whatever the pipeline and the limits, every pass is there once, runs
// after what it needs, fits, and the end comes no later than 1F1B's, ZB-H1's or
// interleaved 1F1B's where these fit, nor before the bound. Method: thousands
// of random pipelines; small ones quick to improve, some with several chunks.
TEST(ListScheduleTest, KeepsLimitsAndIsNeverWorseThanKnownOrders) {
  int num_better = 0, num_fitting = 0;
  for (uint32_t seed = 0; seed < 2000; seed += SweepStep(23)) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto pick = [&](uint32_t n) {
      return static_cast<int32_t>(random() % n);
    };
    PipelineCosts costs =
        RandomPipeline(random, 1 + pick(8) / 7, 5, seed % 50 == 0 ? 24 : 6);
    if (pick(2) == 0) {
      for (size_t c = 0; c < costs.stage_of_chunk.size(); ++c) {
        costs.stage_of_chunk[c] = static_cast<int32_t>(c) % costs.num_stages;
      }
    }
    ListLimits limits{.memory_bytes = {}, .transfer_buffers = pick(3)};
    const int32_t slack = pick(6) * 120;
    for (int32_t s = 0; s < costs.num_stages && slack < 600; ++s) {
      limits.memory_bytes.push_back(LeastBytes(costs, s) + slack);
    }
    const absl::StatusOr<ListedSchedule> listed = ListSchedule(costs, limits);
    ASSERT_TRUE(listed.ok()) << listed.status();
    ASSERT_TRUE(CheckOrder(costs, listed->order).ok())
        << CheckOrder(costs, listed->order);
    const absl::StatusOr<OrderTimes> times =
        TimeOrder(costs, listed->order, limits.transfer_buffers);
    ASSERT_TRUE(times.ok()) << times.status();
    EXPECT_EQ(times->makespan_s, listed->times.makespan_s);
    EXPECT_GE(times->makespan_s, listed->lower_bound_s * (1 - 1e-9));
    for (size_t s = 0; s < limits.memory_bytes.size(); ++s) {
      EXPECT_LE(times->peak_bytes[s], limits.memory_bytes[s]) << "stage " << s;
    }
    for (const Schedule schedule :
         {Schedule::kOneForwardOneBackward, Schedule::kZeroBubble,
          Schedule::kInterleaved}) {
      const absl::StatusOr<PassOrder> known = OrderOf(schedule, costs);
      if (!known.ok()) continue;
      const absl::StatusOr<OrderTimes> known_times =
          TimeOrder(costs, *known, limits.transfer_buffers);
      if (!known_times.ok()) continue;  // Wants more buffers.
      bool fits = true;
      for (size_t s = 0; s < limits.memory_bytes.size(); ++s) {
        fits &= known_times->peak_bytes[s] <= limits.memory_bytes[s];
      }
      if (!fits) continue;
      ++num_fitting;
      num_better += times->makespan_s < known_times->makespan_s * (1 - 1e-9);
      EXPECT_LE(times->makespan_s, known_times->makespan_s * (1 + 1e-9))
          << ScheduleName(schedule);
    }
  }
  EXPECT_GT(num_fitting, kSanitized ? 40 : 1000);
  EXPECT_GT(num_better, num_fitting / 3);
}

// All orders of one stage that keep micro-batches in order.
void AppendOrders(int32_t chunk, const PipelineCosts& costs, int64_t limit,
                  int32_t forward, int32_t input, int32_t weight,
                  std::vector<ChunkPass>* passes, PassOrder* orders) {
  if (PeakBytes(costs, *passes) > limit) return;
  if (weight == costs.num_microbatches) {
    orders->push_back(*passes);
    return;
  }
  const auto add = [&](ChunkPassKind kind, int32_t* count) {
    passes->push_back({kind, chunk, (*count)++});
    AppendOrders(chunk, costs, limit, forward, input, weight, passes, orders);
    --*count;
    passes->pop_back();
  };
  if (forward < costs.num_microbatches) add(ChunkPassKind::kForward, &forward);
  if (input < forward) add(ChunkPassKind::kInputGradient, &input);
  if (weight < input) add(ChunkPassKind::kWeightGradient, &weight);
}

double LeastMakespan(const PipelineCosts& costs,
                     const std::vector<int64_t>& memory_bytes) {
  std::vector<PassOrder> orders(costs.num_stages);
  PassOrder order;
  for (int32_t s = 0; s < costs.num_stages; ++s) {
    std::vector<ChunkPass> passes;
    AppendOrders(s, costs, memory_bytes[s], 0, 0, 0, &passes, &orders[s]);
    order.push_back(orders[s][0]);
  }
  OrderTimer timer(costs, 0);
  std::vector<size_t> at(costs.num_stages);
  double least_s = std::numeric_limits<double>::infinity();
  for (size_t s = 0; s < at.size();) {
    if (timer.Run(order)) least_s = std::min(least_s, timer.times().makespan_s);
    for (s = 0; s < at.size(); ++s) {
      const bool has_more = ++at[s] < orders[s].size();
      if (!has_more) at[s] = 0;
      order[s] = orders[s][at[s]];
      if (has_more) break;
    }
  }
  return least_s;
}

// Goal: small pipelines are scheduled as well as can be. Method: two and three
// uneven stages, two and three micro-batches, against all orders there are.
TEST(ListScheduleTest, FindsTheOptimumOfSmallPipelines) {
  int num_optimal = 0, num_tried = 0;
  for (uint32_t seed = 0; seed < 80; seed += SweepStep(7)) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    PipelineCosts costs = RandomPipeline(random, 1, 3, 3);
    std::vector<int64_t> memory_bytes;
    for (int32_t s = 0; s < costs.num_stages; ++s) {
      memory_bytes.push_back(LeastBytes(costs, s) + 80 * (seed % 4));
    }
    const double optimum_s = LeastMakespan(costs, memory_bytes);
    const ListedSchedule listed =
        *ListSchedule(costs, {.memory_bytes = memory_bytes});
    EXPECT_LE(listed.lower_bound_s, optimum_s * (1 + 1e-9));
    EXPECT_LE(listed.times.makespan_s, optimum_s * 1.05);
    num_optimal += listed.times.makespan_s <= optimum_s * (1 + 1e-9);
    ++num_tried;
  }
  EXPECT_GE(num_optimal, num_tried - 2);
}

// Goal: equal inputs give equal orders, large ones too. Method: twice.
TEST(ListScheduleTest, IsDeterministic) {
  std::mt19937 random(3);
  PipelineCosts costs = RandomPipeline(random, 2, 8, 4);
  costs.num_microbatches = 40;
  const ListLimits limits{.memory_bytes = {}, .transfer_buffers = 2};
  EXPECT_EQ(ListSchedule(costs, limits)->order,
            ListSchedule(costs, limits)->order);
}

// Goal: what cannot be is refused with what is missing. Method: each fault.
TEST(ListScheduleTest, RefusesWhatCannotBe) {
  const PipelineCosts costs = AlikePipeline(2, 2, 2);
  EXPECT_THAT(ListSchedule(costs, {.memory_bytes = {120}}).status().message(),
              HasSubstr("1 stages for a pipeline of 2"));
  EXPECT_TRUE(ListSchedule(costs, {.memory_bytes = {120, 120}}).ok());
  EXPECT_THAT(
      ListSchedule(costs, {.memory_bytes = {120, 119}}).status().message(),
      HasSubstr("stage 1 may hold 119 bytes, but one micro-batch needs 120"));
  PipelineCosts bad = costs;
  bad.chunks.pop_back();
  EXPECT_EQ(ListSchedule(bad, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
