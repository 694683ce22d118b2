#include "planner/pipeline/order_times.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/pipeline/pass_order.h"
#include "tests/planner/pipeline/order_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
constexpr auto kForward = ChunkPassKind::kForward;
constexpr auto kInput = ChunkPassKind::kInputGradient;
constexpr auto kWeight = ChunkPassKind::kWeightGradient;

// Goal: passes start when what they need is there, gradients leave a whole
// backward pass at its end and one apart before its weight gradient. Method:
// two stages, one micro-batch, by hand.
TEST(TimeOrderTest, FollowsDependenciesAndTransfers) {
  PipelineCosts costs = AlikePipeline(2, 1, 1);
  costs.transfer_s = 0.25;
  PassOrder order = OrderOf(Schedule::kOneForwardOneBackward, costs).value();
  OrderTimes times = *TimeOrder(costs, order);
  // Forward 0-1 and 1.25-2.25, backward 2.25-4.25 and 4.5-6.5.
  EXPECT_DOUBLE_EQ(times.passes[1][0].start_s, 1.25);
  EXPECT_DOUBLE_EQ(times.passes[0][1].start_s, 4.5);
  EXPECT_DOUBLE_EQ(times.makespan_s, 6.5);
  order[1] = {{kForward, 1, 0}, {kInput, 1, 0}, {kWeight, 1, 0}};
  times = *TimeOrder(costs, order);
  EXPECT_DOUBLE_EQ(times.passes[0][1].start_s, 3.5);
  EXPECT_DOUBLE_EQ(times.makespan_s, 5.5);
}

// Goal: uniform 1F1B, interleaved 1F1B and ZB-H1 take what their papers say.
// Method: sweep shapes against the closed forms.
TEST(TimeOrderTest, KnowsTheLawsOfKnownSchedules) {
  for (int32_t p = 1; p <= 6; ++p) {
    for (int32_t m = p; m <= 4 * p; m += p) {
      const PipelineCosts costs = AlikePipeline(p, 1, m);
      EXPECT_NEAR(
          TimeOrder(costs,
                    OrderOf(Schedule::kOneForwardOneBackward, costs).value())
              ->makespan_s,
          3 * (m + p - 1), 1e-9);
      EXPECT_NEAR(
          TimeOrder(costs, OrderOf(Schedule::kZeroBubble, costs).value())
              ->makespan_s,
          3 * m + p - 1, 1e-9);
      for (int32_t v = 2; v <= 4; ++v) {
        const PipelineCosts turns = AlikePipeline(p, v, m);
        EXPECT_NEAR(
            TimeOrder(turns, OrderOf(Schedule::kInterleaved, turns).value())
                ->makespan_s,
            3 * (m + (p - 1) / static_cast<double>(v)), 1e-9);
      }
    }
  }
}

// Goal: with finite buffers a stage runs no further ahead than the next one has
// begun. Method: a quick first stage before a slow one.
TEST(TimeOrderTest, WaitsForBuffers) {
  PipelineCosts costs = AlikePipeline(2, 1, 4);
  costs.chunks[1].forward_s = 10;
  PassOrder order(2);
  for (int32_t c = 0; c < 2; ++c) {
    for (const ChunkPassKind kind : {kForward, kInput, kWeight}) {
      for (int32_t i = 0; i < 4; ++i) order[c].push_back({kind, c, i});
    }
  }
  EXPECT_DOUBLE_EQ(TimeOrder(costs, order)->passes[0][3].start_s, 3);
  // Micro-batch 3 starts as the slow stage starts with micro-batch 1.
  EXPECT_DOUBLE_EQ(TimeOrder(costs, order, 2)->passes[0][3].start_s, 11);
}

// Goal: an order that waits for itself is refused, by name. Method: the last
// stage wants the second micro-batch's backward pass first.
TEST(TimeOrderTest, RefusesADeadlock) {
  const PipelineCosts costs = AlikePipeline(2, 1, 2);
  PassOrder order(2);
  for (int32_t i = 0; i < 2; ++i) {
    order[0].push_back({kForward, 0, i});
    order[0].push_back({ChunkPassKind::kBackward, 0, i});
    order[1].push_back({kForward, 1, i});
  }
  for (int32_t i = 0; i < 2; ++i) {
    order[1].push_back({ChunkPassKind::kBackward, 1, i});
  }
  ASSERT_TRUE(CheckOrder(costs, order).ok());
  const absl::Status status = TimeOrder(costs, order).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("stage 0 waits for ever"));
}

// Goal: bytes are held from the forward pass to the input gradient and from
// there to the weight gradient. Method: by hand.
TEST(PeakBytesTest, CountsWhatIsHeld) {
  PipelineCosts costs = AlikePipeline(1, 1, 2);
  costs.chunks[0].activation_bytes = 100;
  costs.chunks[0].weight_gradient_bytes = 70;
  const ChunkPass f0{kForward, 0, 0}, f1{kForward, 0, 1}, b0{kInput, 0, 0},
      b1{kInput, 0, 1}, w0{kWeight, 0, 0}, w1{kWeight, 0, 1};
  EXPECT_EQ(PeakBytes(costs, {f0, b0, w0, f1, b1, w1}), 100);
  EXPECT_EQ(PeakBytes(costs, {f0, b0, f1, w0, b1, w1}), 170);
  EXPECT_EQ(PeakBytes(costs, {f0, f1, b0, b1, w0, w1}), 200);
  costs.chunks[0].weight_gradient_bytes = 130;
  EXPECT_EQ(PeakBytes(costs, {f0, b0, w0, f1, b1, w1}), 130);
  const ChunkPass whole0{ChunkPassKind::kBackward, 0, 0};
  const ChunkPass whole1{ChunkPassKind::kBackward, 0, 1};
  EXPECT_EQ(PeakBytes(costs, {f0, f1, whole0, whole1}), 230);
}

// Goal: costs that do not fit each other are refused. Method: each fault.
TEST(CheckCostsTest, RefusesWhatCannotBe) {
  const PipelineCosts good = AlikePipeline(2, 2, 3);
  EXPECT_TRUE(CheckCosts(good).ok());
  PipelineCosts bad = good;
  bad.stage_of_chunk.pop_back();
  EXPECT_THAT(CheckCosts(bad).message(), HasSubstr("4 chunks"));
  bad = good;
  bad.stage_of_chunk[1] = 2;
  EXPECT_THAT(CheckCosts(bad).message(), HasSubstr("chunk 1 is on stage 2"));
  bad = good;
  bad.chunks[3].forward_s = -1;
  EXPECT_THAT(CheckCosts(bad).message(), HasSubstr("chunk 3"));
  bad = good;
  bad.transfer_s = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(CheckCosts(bad).message(), HasSubstr("transfer_s"));
  bad = good;
  bad.num_microbatches = 0;
  EXPECT_FALSE(CheckCosts(bad).ok());
}

}  // namespace
}  // namespace millrace
