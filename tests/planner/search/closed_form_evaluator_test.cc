#include "planner/search/closed_form_evaluator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "planner/profile/shipped_profiles.h"
#include "tests/planner/search/tree_layouts.h"
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
      : random(seed), space(SpaceOf(random)), model(ModelOf(random)) {
    LayoutSpace priced = space.space();
    if (seed % 4 >= 2) {
      // Groups of replicas, and the choice of what they send each other.
      priced.devices_per_node = 4;
      priced.gradient_reduction.reset();
      space = LayoutTree(priced);
    }
    if (seed % 2 == 0) return;
    // Sets of ops by their prices.
    priced.recomputes = [this](const Layout& layout) {
      return model.Recomputes(layout);
    };
    space = LayoutTree(priced);
  }
  RandomCase(const RandomCase&) = delete;

  static LayoutTree SpaceOf(std::mt19937_64& random) {
    LayoutSpace space = {.model = RandomModel(random),
                         .global_batch = random() % 2 == 0 ? 16 : 24,
                         .num_devices = static_cast<int32_t>(1 + random() % 64),
                         .precision = Precision::kBfloat16,
                         .gemm_format = random() % 3 == 0
                                            ? GemmFormat::kFloat8
                                            : GemmFormat::kAsStored};
    if (random() % 4 == 0) space.constraints.recompute = "selective";
    return LayoutTree(space);
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
  LayoutTree space;
  StepModel model;
};

// Goal: no floor is above what it bounds, or the search would lose optima.
// Method: every floor of every layout of random spaces, against the prediction.
TEST(StepEvaluatorTest, FloorsAreAdmissible) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    RandomCase c(seed);
    StepEvaluator evaluator(c.space, c.model);
    for (const Layout& layout : Sampled(LayoutsOf(c.space), 29)) {
      const StepPrediction step = evaluator.Predict(layout);
      const double seconds = step.time.step_time_s() * (1 + 1e-9);
      Layout order = layout;
      order.zero = 0;
      order.data_groups = 1;
      order.gradient_reduction = GradientReduction::kFloat32;
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
      ASSERT_LE(layout.most_microbatches() * evaluator.PassFloor(sharding) /
                    layout.pipeline,
                seconds);
      ASSERT_LE(evaluator.MeshMemoryFloor(mesh), step.memory.total())
          << LayoutToString(layout);
      ASSERT_LE(evaluator.OrderMemoryFloor(order), step.memory.total())
          << LayoutToString(layout);
      ASSERT_LE(evaluator.ShardingMemoryFloor(sharding), step.memory.total())
          << LayoutToString(layout);
    }
  }
}

// Every way in which stages of a pipeline may recompute.
std::vector<Layout> ByStage(const LayoutSpace& space, const Layout& layout) {
  std::vector<Layout> all = {layout};
  all.front().recompute_by_stage.assign(static_cast<size_t>(layout.pipeline),
                                        Recompute::kNone);
  const std::vector<StageRecomputes> allowed = AllowedRecomputes(space, layout);
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    const size_t count = all.size();
    for (size_t i = 0; i < count; ++i) {
      for (const StageRecomputes& more : allowed) {
        if (more.recompute == Recompute::kNone) continue;
        Layout variant = all[i];
        variant.recompute_by_stage[static_cast<size_t>(stage)] = more.recompute;
        variant.recompute = variant.recompute | more.recompute;
        all.push_back(variant);
      }
    }
  }
  return all;
}

// Goal: what stages recompute is chosen as well as it can be where they may
// differ, and no floor is above any choice. Method: all choices of short
// pipelines of random spaces, at limits between the least and the most memory.
TEST(StepEvaluatorTest, FitsEachStageApart) {
  int num_tried = 0, num_fitted = 0;
  for (uint64_t seed = 200; seed < 212; seed += SweepStep(5)) {
    RandomCase c(seed);
    if (c.space.space().constraints.recompute != "auto") continue;
    StepEvaluator evaluator(c.space, c.model);
    for (const Layout& plain : Sampled(LayoutsOf(c.space), 97)) {
      if (plain.recompute != Recompute::kNone || plain.pipeline < 2 ||
          plain.pipeline > 4) {
        continue;
      }
      // Each takes all sets of recomputed tensors of all stages.
      if (!kSanitized && num_tried++ % 4 != 0) continue;
      Layout full = plain;
      full.recompute = Recompute::kFull;
      const int64_t least = c.model.Predict(full).memory.total();
      const int64_t most = c.model.Predict(plain).memory.total();
      const int64_t limit = least + (most - least) / 2;
      Layout order = plain, mesh = plain;
      order.zero = mesh.zero = 0;
      mesh.schedule = Schedule::kOneForwardOneBackward;
      mesh.interleave = 1;
      const double floor_s = evaluator.OrderFloor(order);
      const int64_t floor_bytes = evaluator.MeshMemoryFloor(mesh);
      double best_s = std::numeric_limits<double>::infinity();
      for (const Layout& variant : ByStage(c.space.space(), plain)) {
        const StepPrediction step = c.model.Predict(variant);
        const double seconds = step.time.step_time_s();
        ASSERT_LE(floor_s, seconds * (1 + 1e-9)) << LayoutToString(variant);
        ASSERT_LE(floor_bytes, step.memory.total()) << LayoutToString(variant);
        // Passes alone: what the data axis exposes is the slowest stage's.
        if (step.memory.total() <= limit) {
          best_s =
              std::min(best_s, c.model.PredictPasses(variant).step_time_s());
        }
      }
      const auto fitted = evaluator.FitRecompute(plain, limit);
      if (!fitted.has_value()) continue;
      ++num_fitted;
      const StepPrediction step = c.model.Predict(*fitted);
      EXPECT_LE(step.memory.total(), limit) << LayoutToString(*fitted);
      // With zero bubble what another stage defers may be worth more.
      if (plain.schedule == Schedule::kZeroBubble) continue;
      EXPECT_LE(c.model.PredictPasses(*fitted).step_time_s(),
                best_s * (1 + 1e-9))
          << seed << " " << LayoutToString(*fitted);
    }
  }
  EXPECT_GT(num_fitted, kSanitized ? 2 : 20);
}

// Goal: the search's optimum is the model's. Method: price every layout of
// random spaces, at random limits of memory, and what lets each stage fit.
TEST(StepEvaluatorTest, SearchFindsTheOptimumOfTheModel) {
  int num_by_stage = 0, num_best_by_stage = 0;
  for (uint64_t seed = 100; seed < 112; seed += SweepStep(5)) {
    RandomCase c(seed);
    StepEvaluator evaluator(c.space, c.model);
    const auto smallest = FindSmallestLayout(c.space, evaluator);
    ASSERT_TRUE(smallest.has_value());
    const int64_t least = smallest->prediction.memory.total();
    const std::vector<Layout> layouts = LayoutsOf(c.space);
    std::vector<std::pair<int64_t, double>> priced;  // Bytes and seconds.
    for (const Layout& layout : layouts) {
      const StepPrediction step = c.model.Predict(layout);
      ASSERT_GE(step.memory.total(), least);
      priced.emplace_back(step.memory.total(), step.time.step_time_s());
    }
    for (const int64_t limit :
         {least, least + least / 3, std::numeric_limits<int64_t>::max()}) {
      double best_s = std::numeric_limits<double>::infinity();
      for (size_t i = 0; i < layouts.size(); ++i) {
        const Layout& layout = layouts[i];
        const auto [bytes, seconds] = priced[i];
        if (bytes <= limit) {
          best_s = std::min(best_s, seconds);
        } else if (layout.recompute == Recompute::kNone) {
          const auto fitted = evaluator.FitRecompute(layout, limit);
          if (!fitted.has_value()) continue;
          num_by_stage += 1;
          const StepPrediction apart = c.model.Predict(*fitted);
          ASSERT_LE(apart.memory.total(), limit) << LayoutToString(*fitted);
          best_s = std::min(best_s, apart.time.step_time_s());
        }
      }
      const FastestLayouts found =
          FindFastestLayouts(c.space, limit, {.num_kept = 1}, evaluator);
      ASSERT_EQ(found.best.size(), 1u);
      EXPECT_EQ(found.best.front().prediction.time.step_time_s(), best_s)
          << seed << " " << LayoutToString(found.best.front().layout);
      EXPECT_EQ(found.optimality_gap, 0);
      num_best_by_stage +=
          found.best.front().layout.recompute_by_stage.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(num_by_stage, kSanitized ? 20 : 100);
  EXPECT_GE(num_best_by_stage, kSanitized ? 0 : 1);
}

}  // namespace
}  // namespace millrace
