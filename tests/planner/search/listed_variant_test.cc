#include "planner/search/listed_variant.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/lower/lower.h"
#include "planner/search/program_prediction.h"
#include "tests/planner/planner_testing.h"
#include "tests/planner/profile_fixture.h"

namespace millrace {
namespace {

ModelSpec Model() {
  return {.vocab_size = 256,
          .hidden = 64,
          .num_layers = 8,
          .num_heads = 4,
          .num_kv_heads = 4,
          .head_dim = 16,
          .ffn_hidden = 192,
          .sequence_length = 64};
}

int64_t LargestArenas(const Layout& layout) {
  int64_t largest = 0;
  const std::vector<Program> programs = *BuildTrainingPrograms(Model(), layout);
  for (const Program& program : programs) {
    largest = std::max(
        largest, program.persistent_arena_bytes + program.step_arena_bytes);
  }
  return largest;
}

double StepSeconds(const Layout& layout, const CostModel& cost) {
  Timeline timeline;
  return PredictLayout(Model(), layout, cost, &timeline)->step_time_s;
}

// Goal: the variant's Programs run (no deadlock in the simulation), fit the
// arenas asked for, and with the memory of zero bubble or more are quicker than
// 1F1B's. Method: sweep pipelines and memory, relative to 1F1B's.
TEST(ListScheduledVariantTest, FitsAndIsQuicker) {
  const CostModel cost = *CostModel::Create(MakeProfile({}));
  for (const int32_t pipeline : {2, 4}) {
    for (const int32_t num_microbatches : {2, 8}) {
      for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
        const Layout layout{.pipeline = pipeline,
                            .num_microbatches = num_microbatches,
                            .recompute = recompute};
        const int64_t plain = LargestArenas(layout);
        const double plain_s = StepSeconds(layout, cost);
        for (const double share : {0.9, 1.0, 1.1, 2.0}) {
          SCOPED_TRACE(absl::StrCat(LayoutToString(layout), ", ", share));
          const auto arena_bytes =
              static_cast<int64_t>(share * static_cast<double>(plain));
          const auto listed =
              *ListScheduledVariant(Model(), layout, cost, arena_bytes);
          if (!listed.has_value()) {
            EXPECT_LT(share, recompute == Recompute::kNone ? 1.1 : 2);
            continue;
          }
          EXPECT_TRUE(
              ValidateLayout(Model(), *listed, layout.global_batch()).ok());
          EXPECT_LE(LargestArenas(*listed), arena_bytes);
          const double seconds = StepSeconds(*listed, cost);
          if (share >= 2) {
            EXPECT_LT(seconds, plain_s);
          }
        }
      }
    }
  }
}

// Goal: layouts that cannot defer weight gradients have no variant. Method:
// one stage, ZeRO 2, and no memory.
TEST(ListScheduledVariantTest, LeavesOthersAlone) {
  const CostModel cost = *CostModel::Create(MakeProfile({}));
  constexpr int64_t kPlenty = int64_t{1} << 40;
  EXPECT_FALSE(ListScheduledVariant(Model(), {}, cost, kPlenty)->has_value());
  EXPECT_FALSE(ListScheduledVariant(Model(),
                                    {.pipeline = 2, .data = 2, .zero = 2}, cost,
                                    kPlenty)
                   ->has_value());
  EXPECT_FALSE(
      ListScheduledVariant(Model(), {.pipeline = 2}, cost, 1000)->has_value());
}

}  // namespace
}  // namespace millrace
