#include "planner/step_evaluator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>

#include "planner/shipped_profiles.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

ModelSpec RandomModel(std::mt19937_64& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return *(values.begin() + random() % values.size());
  };
  const int64_t heads = pick({8, 16, 32});
  ModelSpec model = {.vocab_size = pick({32000, 128256}),
                     .hidden = heads * 128,
                     .num_layers = pick({5, 12, 30}),
                     .num_heads = heads,
                     .num_kv_heads = pick({4, 8}),
                     .head_dim = 128,
                     .ffn_hidden = heads * 128 * pick({2, 4}),
                     .sequence_length = pick({2048, 8192})};
  if (random() % 2 == 0) {
    model.moe = {.num_experts = 16,
                 .experts_per_token = 2,
                 .expert_hidden = pick({512, 2048}),
                 .num_shared_experts = pick({0, 1}),
                 .num_dense_layers = pick({0, 2})};
  }
  return model;
}

// A random space of at most 64 devices, with its model of steps.
struct RandomCase {
  explicit RandomCase(uint64_t seed)
      : random(seed), space(SpaceOf(random)), model(ModelOf(random)) {}

  static PlannedSpace SpaceOf(std::mt19937_64& random) {
    LayoutSpace space = {.model = RandomModel(random),
                         .global_batch = random() % 2 == 0 ? 16 : 24,
                         .num_devices = static_cast<int32_t>(1 + random() % 64),
                         .precision = Precision::kBfloat16,
                         .gemm_format = random() % 3 == 0
                                            ? GemmFormat::kFloat8
                                            : GemmFormat::kAsStored};
    if (random() % 4 == 0) space.constraints.recompute = "selective";
    return PlannedSpace(space);
  }
  StepModel ModelOf(std::mt19937_64& random_name) const {
    const auto profile =
        LoadNamedProfile(random_name() % 2 == 0 ? "h100-sxm" : "gb200-nvl72");
    EXPECT_TRUE(profile.ok()) << profile.status();
    auto step_model = StepModel::Create(space.space().model, *profile, {});
    EXPECT_TRUE(step_model.ok()) << step_model.status();
    return *std::move(step_model);
  }

  std::mt19937_64 random;
  PlannedSpace space;
  StepModel model;
};

// Goal: no floor is above what it bounds, or the search would lose optima.
// Method: every floor of every layout of random spaces, against the prediction.
TEST(StepEvaluatorTest, FloorsAreAdmissible) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    RandomCase c(seed);
    StepEvaluator evaluator(c.space, c.model);
    for (const Layout& layout : Sampled(EnumeratePlannedLayouts(c.space), 3)) {
      const StepPrediction step = evaluator.Predict(layout);
      const double seconds = step.time.step_time_s() * (1 + 1e-9);
      Layout order = layout;
      order.zero = 0;
      order.recompute = Recompute::kNone;
      Layout mesh = order;
      mesh.schedule = Schedule::kOneForwardOneBackward;
      mesh.interleave = 1;
      Layout sharding = mesh;
      sharding.pipeline = sharding.data = 1;
      sharding.num_microbatches *= layout.data;
      ASSERT_LE(evaluator.VariantFloor(layout), seconds);
      ASSERT_LE(evaluator.OrderFloor(order), seconds);
      ASSERT_LE(evaluator.MeshFloor(mesh), seconds);
      ASSERT_LE(layout.num_microbatches * evaluator.PassFloor(sharding) /
                    layout.pipeline,
                seconds);
      ASSERT_LE(evaluator.MeshMemoryFloor(mesh), step.memory.total())
          << LayoutToString(layout);
      ASSERT_LE(evaluator.ShardingMemoryFloor(sharding), step.memory.total())
          << LayoutToString(layout);
    }
  }
}

// Goal: the search's optimum is the model's. Method: price every layout of
// random spaces, at random limits of memory.
TEST(StepEvaluatorTest, SearchFindsTheOptimumOfTheModel) {
  for (uint64_t seed = 100; seed < 112; ++seed) {
    RandomCase c(seed);
    StepEvaluator evaluator(c.space, c.model);
    const auto smallest = FindSmallestLayout(c.space, evaluator);
    ASSERT_TRUE(smallest.has_value());
    const int64_t least = smallest->prediction.memory.total();
    for (const int64_t limit :
         {least, least + least / 3, std::numeric_limits<int64_t>::max()}) {
      double best_s = std::numeric_limits<double>::infinity();
      for (const Layout& layout : EnumeratePlannedLayouts(c.space)) {
        const StepPrediction step = c.model.Predict(layout);
        ASSERT_GE(step.memory.total(), least);
        if (step.memory.total() > limit) continue;
        best_s = std::min(best_s, step.time.step_time_s());
      }
      const ClusterSearchResult found =
          SearchCluster(c.space, limit, {.num_kept = 1}, evaluator);
      ASSERT_EQ(found.best.size(), 1u);
      EXPECT_EQ(found.best.front().prediction.time.step_time_s(), best_s)
          << seed << " " << LayoutToString(found.best.front().layout);
      EXPECT_EQ(found.optimality_gap, 0);
    }
  }
}

}  // namespace
}  // namespace millrace
