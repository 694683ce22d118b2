#include "planner/pipeline/layout_order.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/pipeline/order_times.h"
#include "planner/pipeline/pass_order.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

Layout SomeLayout(int32_t pipeline, int32_t num_microbatches) {
  return ListScheduled(
      {.pipeline = pipeline, .num_microbatches = num_microbatches});
}

// The layout's costs, in microseconds.
PipelineCosts CostsOf(const Layout& layout) {
  PipelineCosts costs;
  costs.num_stages = layout.pipeline;
  costs.num_microbatches = layout.num_microbatches;
  costs.transfer_s = layout.listed_transfer_us;
  for (int32_t s = 0; s < layout.pipeline; ++s) {
    const ListedStage& stage = layout.listed_stages[s];
    costs.stage_of_chunk.push_back(s);
    costs.chunks.push_back(
        {1.0 * stage.forward_us, 1.0 * stage.input_gradient_us,
         1.0 * stage.weight_gradient_us, stage.activation_bytes,
         stage.weight_gradient_bytes});
  }
  return costs;
}

// Goal: the order is whole, runs with the buffers that Programs have, and holds
// what the layout allows; more memory never makes it slower. Method: sweep
// shapes and memory.
TEST(ListedOrderTest, RunsWithinTheLayoutsMemory) {
  for (const int32_t pipeline : {2, 3, 4, 8}) {
    for (const int32_t num_microbatches : {1, 2, 5, 16}) {
      double last_s = 1e18;
      for (const int64_t memory_bytes : {100, 200, 400, 1600}) {
        SCOPED_TRACE(absl::StrCat(pipeline, " stages, ", num_microbatches,
                                  " micro-batches, ", memory_bytes));
        Layout layout = SomeLayout(pipeline, num_microbatches);
        for (ListedStage& stage : layout.listed_stages) {
          stage.memory_bytes = memory_bytes;
        }
        const PassOrder order = *ListedOrder(layout);
        const PipelineCosts costs = CostsOf(layout);
        ASSERT_TRUE(CheckOrder(costs, order).ok()) << CheckOrder(costs, order);
        const OrderTimes times = *TimeOrder(costs, order, kTransferBuffers);
        for (const int64_t bytes : times.peak_bytes) {
          EXPECT_LE(bytes, memory_bytes);
        }
        EXPECT_LE(times.makespan_s, last_s);
        last_s = times.makespan_s;
        EXPECT_EQ(*ListedOrder(layout), order);
      }
    }
  }
}

// Goal: a layout says what its schedule goes by, and nothing else does. Method:
// each fault, through ValidateLayout.
TEST(ListedLayoutTest, IsValidatedWithItsCosts) {
  const ModelSpec model = TestModel();
  const Layout good = SomeLayout(2, 4);
  const auto error = [&](const Layout& layout) {
    return std::string(
        ValidateLayout(model, layout, layout.global_batch()).message());
  };
  EXPECT_EQ(error(good), "");
  Layout bad = good;
  bad.listed_stages.pop_back();
  EXPECT_THAT(error(bad), HasSubstr("the costs of 1 stages"));
  bad = good;
  bad.schedule = Schedule::kOneForwardOneBackward;
  EXPECT_THAT(error(bad), HasSubstr("others none"));
  bad = good;
  bad.listed_transfer_us = -1;
  EXPECT_THAT(error(bad), HasSubstr("a transfer of -1 us"));
  bad = good;
  bad.listed_stages[1].weight_gradient_us = -1;
  EXPECT_THAT(error(bad), HasSubstr("stage 1 are negative"));
  bad = good;
  bad.listed_stages[0].memory_bytes = 99;
  EXPECT_THAT(error(bad), HasSubstr("memory of 99 bytes"));
  bad = good;
  bad.data = 2;
  bad.zero = 2;
  EXPECT_THAT(error(bad), HasSubstr("ZeRO 0 or 1"));
  EXPECT_THAT(error(SomeLayout(1, 4)), HasSubstr("two stages"));
  EXPECT_EQ(LayoutToString(good),
            "pipeline 2 x data 1 x tensor 1, 4 micro-batches of 1, ZeRO 0, "
            "fp32, list-scheduled");
}

}  // namespace
}  // namespace millrace
