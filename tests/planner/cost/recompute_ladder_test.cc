#include "planner/cost/recompute_ladder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "planner/explain/explain.h"
#include "planner/lower/lower.h"
#include "planner/profile/shipped_profiles.h"
#include "planner/search/program_prediction.h"
#include "planner/search/search.h"
#include "tests/planner/planning_fixture.h"

namespace millrace {
namespace {

std::map<Recompute, double> SavedBytes(
    const std::vector<RecomputeCandidate>& candidates) {
  std::map<Recompute, double> bytes;
  for (const RecomputeCandidate& candidate : candidates) {
    bytes[candidate.op] = candidate.bytes;
  }
  return bytes;
}

CostModel MadeUpCost() {
  auto cost = CostModel::Create(MakeProfile({}));
  EXPECT_TRUE(cost.ok()) << cost.status();
  return *std::move(cost);
}

// Goal: what an op saves is what its outputs hold, as shards. Method: count the
// elements of a layer of Llama 3 8B in bf16, alone and of two tensor ranks; an
// epsilon for the root of each norm and the statistics of each row of scores.
TEST(PriceRecomputeTest, SavesWhatTheOutputsHold) {
  const auto profile = LoadNamedProfile("h200-sxm");
  ASSERT_TRUE(profile.ok()) << profile.status();
  const auto cost = CostModel::Create(*profile);
  ASSERT_TRUE(cost.ok()) << cost.status();
  const ModelSpec model = Llama3_8B();
  for (const int32_t tensor : {1, 2}) {
    const Layout layout{
        .tensor = tensor, .micro_batch = 2, .precision = Precision::kBfloat16};
    const auto saved = SavedBytes(PriceRecompute(model, layout, *cost));
    const double tokens = 2.0 * static_cast<double>(model.sequence_length);
    const double share = tokens / tensor;
    const auto hidden = static_cast<double>(model.hidden);
    const auto inner = static_cast<double>(model.ffn_hidden);
    EXPECT_EQ(saved.at(Recompute::kNorm), 2 * share * (2 * hidden + 4));
    EXPECT_EQ(saved.at(Recompute::kActivation), 2 * share * inner);
    EXPECT_EQ(saved.at(Recompute::kGateUp), 2 * share * 2 * inner);
    EXPECT_EQ(saved.at(Recompute::kQkv), 2 * share * (32 + 2 * 8) * 128);
    EXPECT_EQ(saved.at(Recompute::kAttention),
              2 * share * hidden + 4 * share * 32);
    EXPECT_EQ(saved.at(Recompute::kOutput), 2 * share * hidden);
    EXPECT_EQ(saved.at(Recompute::kDispatch), 0);
  }
}

// Goal: what moves bytes comes before what multiplies, and sets grow to all.
// Method: the measured profile of an H200.
TEST(PriceRecomputeTest, TakesCheapOpsFirst) {
  const auto profile = LoadNamedProfile("h200-sxm");
  ASSERT_TRUE(profile.ok()) << profile.status();
  const auto cost = CostModel::Create(*profile);
  ASSERT_TRUE(cost.ok()) << cost.status();
  const std::vector<Recompute> ladder = RecomputeLadder(
      PriceRecompute(Llama3_8B(), {.precision = Precision::kBfloat16}, *cost));
  // The query, key and value product stands in for the larger gate and up.
  ASSERT_EQ(ladder.size(), 8u);
  EXPECT_EQ(ladder[2], Recompute::kCheap);
  EXPECT_EQ(ladder[3], Recompute::kCheap | Recompute::kQkv);
  EXPECT_EQ(ladder[4], Recompute::kCheap | Recompute::kGateUp);
  EXPECT_EQ(ladder.back(), Recompute::kFull);
}

// Goal: each larger set holds less, by what its op saves in all layers but the
// one under way. Method: step arenas of twelve layers along the ladder, alone,
// with tensor ranks and where a zero-bubble pipeline puts weight gradients off.
TEST(RecomputeLadderTest, ArenasFallWithEachSet) {
  ModelSpec model = SmallJob().model;
  model.num_layers = 12;
  model.sequence_length = 512;
  const CostModel cost = MadeUpCost();
  for (const Layout& shape : {Layout{.num_microbatches = 2},
                              Layout{.tensor = 2, .num_microbatches = 2},
                              Layout{.pipeline = 2,
                              .num_microbatches = 4,
                              .schedule = Schedule::kZeroBubble}}) {
    Layout layout = shape;
    const auto prices = PriceRecompute(model, layout, cost);
    const auto saved = SavedBytes(prices);
    const auto arena = [&](Recompute set) {
      layout.recompute = set;
      const auto program = BuildTrainingProgram(model, layout, 0);
      EXPECT_TRUE(program.ok()) << program.status();
      EXPECT_TRUE(CheckProgram(*program).ok());
      return static_cast<double>(program->step_arena_bytes);
    };
    double before = arena(Recompute::kNone);
    Recompute last = Recompute::kNone;
    for (const Recompute set : RecomputeLadder(prices)) {
      if (set == Recompute::kNone) continue;
      const double after = arena(set);
      double falls_by = 0;
      for (const Recompute op : kRecomputeOps) {
        falls_by += (Has(set, op) - Has(last, op)) * saved.at(op);
      }
      EXPECT_LT(after, before) << LayoutToString(layout);
      // Recomputed outputs live until deferred weight gradients.
      if (layout.schedule == Schedule::kOneForwardOneBackward) {
        EXPECT_LE(after, before - 0.6 * 11 * falls_by)
            << LayoutToString(layout);
      }
      before = after;
      last = set;
    }
  }
}

// Goal: the planner takes the first set of the ladder that fits, and says what
// that saves and takes. Method: limits of memory just above each set's need.
TEST(RecomputeLadderTest, PlannerTakesTheLeastThatFits) {
  const CostModel cost = MadeUpCost();
  JobSpec job = SmallJob();
  job.model.num_layers = 8;
  job.model.sequence_length = 256;
  job.layout = {
      .pipeline = 1, .data = 1, .tensor = 1, .micro_batch = 2, .zero = 0};
  Layout layout{.micro_batch = 2, .num_microbatches = 4};
  const std::vector<Recompute> ladder =
      RecomputeLadder(PriceRecompute(job.model, layout, cost));
  ASSERT_GE(ladder.size(), 7u);
  std::vector<Prediction> predictions;
  for (const Recompute set : ladder) {
    layout.recompute = set;
    Timeline timeline;
    const auto prediction = PredictLayout(job.model, layout, cost, &timeline);
    ASSERT_TRUE(prediction.ok()) << prediction.status();
    predictions.push_back(*prediction);
  }
  for (size_t i = 0; i < ladder.size(); ++i) {
    if (i > 0) {
      EXPECT_LT(predictions[i].memory_bytes(),
                predictions[i - 1].memory_bytes());
      EXPECT_GT(predictions[i].step_time_s, predictions[i - 1].step_time_s);
    }
    job.resources.memory_per_device_bytes = predictions[i].memory_bytes();
    for (const char* key : {"auto", "selective"}) {
      job.layout.recompute = key;
      const auto plan = FindPlan({.job = job, .num_devices = 1}, cost);
      if (key == std::string("selective")) {
        // Neither nothing nor everything: the first, and none that fits.
        if (i + 1 == ladder.size()) {
          EXPECT_FALSE(plan.ok());
          continue;
        }
        ASSERT_TRUE(plan.ok()) << plan.status();
        EXPECT_EQ(plan->layout.recompute, ladder[i == 0 ? 1 : i]);
        continue;
      }
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->layout.recompute, ladder[i])
          << RecomputeName(plan->layout.recompute);
      EXPECT_EQ(plan->recompute_prices.empty(), i == 0);
      const std::string told = ExplainPlan(job, cost.profile(), *plan, {});
      EXPECT_EQ(told.find("saves of each layer and micro-batch: ") ==
                    std::string::npos,
                i == 0);
    }
    // A named set is taken whatever fits better.
    job.resources.memory_per_device_bytes.reset();
    job.layout.recompute = RecomputeName(ladder[i]);
    const auto pinned = FindPlan({.job = job, .num_devices = 1}, cost);
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    EXPECT_EQ(pinned->layout.recompute, ladder[i]);
  }
}

}  // namespace
}  // namespace millrace
