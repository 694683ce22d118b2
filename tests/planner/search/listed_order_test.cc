#include "planner/search/listed_order.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "planner/graph/style.h"
#include "planner/pipeline/order_times.h"
#include "planner/pipeline/pass_order.h"
#include "tests/planner/known_models.h"
#include "tests/planner/shipped.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

std::vector<Layout> SomeLayouts() {
  std::vector<Layout> layouts;
  for (const int32_t pipeline : {1, 2, 4, 8}) {
    for (const int32_t microbatches : {2, 8, 24}) {
      for (const int32_t interleave : {1, 2, 4}) {
        for (const int32_t zero : {0, 1, 2}) {
          if (pipeline == 1 && interleave > 1) continue;
          layouts.push_back(
              {.pipeline = pipeline,
               .data = 2,
               .tensor = 4,
               .context = 2,
               .interleave = interleave,
               .num_microbatches = microbatches,
               .zero = zero,
               .precision = Precision::kBfloat16,
               .schedule = interleave > 1 ? Schedule::kInterleaved
                                          : Schedule::kOneForwardOneBackward});
        }
      }
    }
  }
  return layouts;
}

// Goal: an order that is found is whole, faster, within the memory of every
// stage, and made again from what the plan keeps of it; and where passes can
// gain, one is found. Method: layouts with context and chunks, from memory that
// holds everything to memory that holds hardly one micro-batch.
TEST(ListOrderTest, IsFasterWithinMemory) {
  const HardwareProfile profile = Shipped("h100-sxm");
  const Implementation implementation;
  StepModel model = *StepModel::Create(Llama3_8B(), profile, implementation);
  int num_found = 0, num_tight = 0;
  for (const Layout& layout : Sampled(SomeLayouts(), 7)) {
    const PassStep step = *PassStepOf(layout, implementation, model);
    const PassOptions options = {.overlap = profile.overlap,
                                 .keeps_timeline = false};
    const double known_s = SimulatePasses(step, options)->step_time_s;
    const int64_t known_bytes = model.PredictMemory(layout).total();
    for (const int64_t limit :
         {80 * kGiB, known_bytes, known_bytes - kGiB, 8 * kGiB}) {
      SCOPED_TRACE(LayoutToString(layout) + " in " + std::to_string(limit));
      const auto found =
          FindListedOrder(layout, step, options, limit, known_s, model);
      ASSERT_TRUE(found.ok()) << found.status();
      if (layout.pipeline == 1 || layout.zero == 2) {
        EXPECT_FALSE(found->has_value());
      }
      if (!found->has_value()) continue;
      ++num_found;
      if (limit < known_bytes) ++num_tight;
      EXPECT_LT((*found)->simulation.step_time_s, known_s);
      EXPECT_LE(known_bytes + (*found)->more_bytes, limit);
      PassStep again = step;
      ASSERT_TRUE(ListPasses((*found)->bytes, &again).ok());
      EXPECT_TRUE(CheckOrder(again.costs, again.order).ok());
      EXPECT_EQ(SimulatePasses(again, options)->step_time_s,
                (*found)->simulation.step_time_s);
      const OrderTimes times = *TimeOrder(again.costs, again.order);
      for (size_t s = 0; s < times.peak_bytes.size(); ++s) {
        EXPECT_LE(times.peak_bytes[s], (*found)->bytes[s]);
      }
    }
  }
  EXPECT_GT(num_found, kSanitized ? 5 : 40);
  EXPECT_GE(num_tight, kSanitized ? 0 : 6);
}

// Goal: the memory of stages is that of the fullest, with the fullest among
// them.
TEST(ListOrderTest, MemoryByStageHasTheFullest) {
  StepModel model =
      *StepModel::Create(Llama3_8B(), Shipped("h100-sxm"), Implementation{});
  for (const Layout& layout : Sampled(SomeLayouts(), 7)) {
    const std::vector<StepMemory> memory = model.MemoryByStage(layout);
    ASSERT_EQ(memory.size(), static_cast<size_t>(layout.pipeline));
    int64_t most = 0;
    for (const StepMemory& stage : memory) {
      most = std::max(most, stage.total());
    }
    EXPECT_EQ(most, model.PredictMemory(layout).total());
  }
}

}  // namespace
}  // namespace millrace
