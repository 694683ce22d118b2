#include "planner/search/branch_and_bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>

#include "planner/cost/layer_work.h"
#include "tests/planner/random_evaluator.h"
#include "tests/planner/search/tree_layouts.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

ModelSpec DenseModel(int64_t num_layers, int64_t num_heads) {
  return {.vocab_size = 128,
          .hidden = 64,
          .num_layers = num_layers,
          .num_heads = num_heads,
          .num_kv_heads = num_heads,
          .head_dim = 16,
          .ffn_hidden = 96,
          .sequence_length = 64};
}

ModelSpec ExpertModel(int64_t num_layers, int64_t num_heads) {
  ModelSpec model = DenseModel(num_layers, num_heads);
  model.moe = {.num_experts = 8,
               .experts_per_token = 2,
               .expert_hidden = 32,
               .num_shared_experts = 1,
               .num_dense_layers = 1};
  return model;
}

// The best of all layouts, one by one.
RankedLayout BestByBruteForce(const LayoutTree& space, int64_t memory_limit,
                              LayoutEvaluator& evaluator) {
  RankedLayout best;
  double best_s = std::numeric_limits<double>::infinity();
  for (const Layout& layout : LayoutsOf(space)) {
    const StepPrediction prediction = evaluator.Predict(layout);
    if (prediction.memory.total() > memory_limit) continue;
    if (prediction.time.step_time_s() < best_s) {
      best_s = prediction.time.step_time_s();
      best = {.layout = layout, .prediction = prediction};
    }
  }
  return best;
}

// A memory limit that some layouts keep: the given share of the way between the
// smallest and the fastest.
int64_t LimitBetween(const LayoutTree& space, double share,
                     LayoutEvaluator& evaluator) {
  const int64_t least =
      FindSmallestLayout(space, evaluator)->prediction.memory.total();
  const int64_t most =
      BestByBruteForce(space, kNoLimit, evaluator).prediction.memory.total();
  return least +
         static_cast<int64_t>(
             share * static_cast<double>(std::max<int64_t>(0, most - least)));
}

// Goal: what the search calls best is best, whatever the model, so that pruning
// never loses the optimum. Method: brute force over the same spaces with random
// models of every kind up to 64 devices, with and without memory to spare.
TEST(BranchAndBoundTest, FindsWhatBruteForceFinds) {
  std::mt19937_64 random(17);
  for (int trial = 0; trial < 60; trial += SweepStep(5)) {
    const auto pick = [&](std::initializer_list<int64_t> values) {
      return *(values.begin() + random() % values.size());
    };
    const int64_t layers = pick({3, 4, 8, 12}), heads = pick({1, 4, 8});
    const LayoutTree space(
        {.model = trial % 2 == 0 ? DenseModel(layers, heads)
                                 : ExpertModel(layers, heads),
         .global_batch = pick({1, 6, 8, 12, 32}),
         .num_devices = static_cast<int32_t>(pick({1, 2, 6, 7, 8, 16, 64}))});
    RandomEvaluator evaluator(random());
    for (const double share : {1.0, 0.5, 0.1}) {
      const int64_t limit = LimitBetween(space, share, evaluator);
      const RankedLayout best = BestByBruteForce(space, limit, evaluator);
      const FastestLayouts found =
          FindFastestLayouts(space, limit, {.num_kept = 3}, evaluator);
      ASSERT_FALSE(found.best.empty());
      EXPECT_EQ(found.best.front().prediction.time.step_time_s(),
                best.prediction.time.step_time_s())
          << LayoutToString(found.best.front().layout) << " and "
          << LayoutToString(best.layout);
      EXPECT_EQ(found.optimality_gap, 0);
      EXPECT_FALSE(found.exhausted);
      for (const RankedLayout& ranked : found.best) {
        EXPECT_LE(ranked.prediction.memory.total(), limit);
        EXPECT_LE(ranked.layout.num_ranks(), space.space().num_devices);
      }
    }
  }
}

// Goal: the search is worth its name. Method: what it prices against the space.
TEST(BranchAndBoundTest, LooksAtFewLayouts) {
  const LayoutTree space(
      {.model = ExpertModel(12, 8), .global_batch = 64, .num_devices = 64});
  RandomEvaluator evaluator(3);
  const FastestLayouts found =
      FindFastestLayouts(space, kNoLimit, {.num_kept = 1}, evaluator);
  EXPECT_LT(found.layouts_considered * 10,
            static_cast<int64_t>(LayoutsOf(space).size()));
}

// Goal: the gap is real where the search ends early. Method: stop it after few
// layouts; the optimum is within what it certifies.
TEST(BranchAndBoundTest, CertifiesWhatItHasNotLookedAt) {
  for (uint64_t seed = 0; seed < 20; seed += SweepStep(5)) {
    const LayoutTree space(
        {.model = DenseModel(12, 8), .global_batch = 32, .num_devices = 64});
    RandomEvaluator evaluator(seed);
    const double best_s = BestByBruteForce(space, kNoLimit, evaluator)
                              .prediction.time.step_time_s();
    const FastestLayouts early =
        FindFastestLayouts(space, kNoLimit, {.num_predictions = 1}, evaluator);
    ASSERT_FALSE(early.best.empty());
    EXPECT_TRUE(early.exhausted);
    EXPECT_GE(best_s * (1 + early.optimality_gap) * (1 + 1e-12),
              early.best.front().prediction.time.step_time_s());
  }
}

// Goal: equal searches give equal results. Method: run twice, with models of
// their own.
TEST(BranchAndBoundTest, IsDeterministic) {
  const LayoutTree space(
      {.model = ExpertModel(8, 8), .global_batch = 48, .num_devices = 48});
  RandomEvaluator first(5), second(5);
  const auto a = FindFastestLayouts(space, kNoLimit, {}, first);
  const auto b = FindFastestLayouts(space, kNoLimit, {}, second);
  EXPECT_EQ(a.layouts_considered, b.layouts_considered);
  ASSERT_EQ(a.best.size(), b.best.size());
  for (size_t i = 0; i < a.best.size(); ++i) {
    EXPECT_EQ(a.best[i].layout, b.best[i].layout);
  }
}

// Goal: where nothing fits, nothing is returned, and the smallest is known.
// Method: a limit just below the smallest of all, by brute force.
TEST(BranchAndBoundTest, KnowsTheSmallestLayout) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const LayoutTree space(
        {.model = ExpertModel(4, 4), .global_batch = 8, .num_devices = 16});
    RandomEvaluator evaluator(seed);
    int64_t least = kNoLimit;
    for (const Layout& layout : LayoutsOf(space)) {
      least = std::min(least, evaluator.Predict(layout).memory.total());
    }
    const auto smallest = FindSmallestLayout(space, evaluator);
    ASSERT_TRUE(smallest.has_value());
    EXPECT_EQ(smallest->prediction.memory.total(), least);
    EXPECT_TRUE(AnyLayoutFits(space, least, evaluator));
    EXPECT_FALSE(AnyLayoutFits(space, least - 1, evaluator));
    EXPECT_TRUE(
        FindFastestLayouts(space, least - 1, {}, evaluator).best.empty());
    EXPECT_FALSE(FindFastestLayouts(space, least, {}, evaluator).best.empty());
  }
}

}  // namespace
}  // namespace millrace
