#include <algorithm>
#include <cmath>
#include <deque>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/pipeline/layout_order.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/e2e/equivalence_job.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/planner/planner_testing.h"
#include "tests/planner/recompute_sets.h"
#include "worker/communicate/gloo_communicator.h"
#include "worker/communicate/memory_rendezvous_store.h"

namespace millrace {
namespace {

constexpr int64_t kNumSteps = 20;
// Layouts sum the same fp32 terms in different orders; over this many steps the
// difference stays below this (relative).
constexpr double kTolerance = 2e-5;

Layout OneRank() { return {.micro_batch = 8}; }

void ExpectClose(double value, double expected, const std::string& what) {
  EXPECT_LE(std::abs(value - expected), kTolerance * std::abs(expected))
      << what << ": " << value << " against " << expected;
}

// Norm-wise.
double RelativeDifference(const std::vector<float>& actual,
                          const std::vector<float>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{actual[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(norm > 0 ? difference / norm : difference);
}

// The run of the small job under `layout`. Tests that compare with it, and do
// not ask whether a run repeats, share it.
const JobResult& RunOf(const Layout& layout) {
  static auto& runs = *new std::deque<std::pair<Layout, JobResult>>;
  for (const auto& [known, run] : runs) {
    if (known == layout) return run;
  }
  return runs.emplace_back(layout, RunJob(SmallJob(), layout, kNumSteps))
      .second;
}

// Goal: no layout changes what is learnt: per-step loss and gradient norm agree
// with the single-rank run. Method: every layout of up to four ranks; the
// losses must also fall, so that equal garbage does not pass.
TEST(EquivalenceTest, EveryLayoutMatchesOneRank) {
  const JobResult& expected = RunOf(OneRank());
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  ASSERT_EQ(expected.losses.size(), static_cast<size_t>(kNumSteps));
  EXPECT_NEAR(expected.losses.front(), std::log(128.0), 0.2);
  EXPECT_LT(expected.losses.back(), expected.losses.front() - 0.3);
  double worst = 0;
  std::set<std::pair<int32_t, Recompute>> seen;
  std::set<std::pair<int32_t, Schedule>> schedules;  // By stages.
  for (const Layout& layout : SmallLayouts()) {
    const std::string name = LayoutToString(layout);
    SCOPED_TRACE(name);
    seen.emplace(layout.zero, layout.recompute);
    schedules.emplace(layout.pipeline, layout.schedule);
    const JobResult& result = RunOf(layout);
    ASSERT_TRUE(result.status.ok()) << result.status;
    for (int64_t i = 0; i < kNumSteps; ++i) {
      ExpectClose(result.losses[i], expected.losses[i],
                  "loss of step " + std::to_string(i + 1));
      ExpectClose(result.gradient_norms[i], expected.gradient_norms[i],
                  "gradient norm of step " + std::to_string(i + 1));
      worst = std::max(
          {worst, std::abs(result.losses[i] / expected.losses[i] - 1),
           std::abs(result.gradient_norms[i] / expected.gradient_norms[i] -
                    1)});
    }
    EXPECT_EQ(result.tensors.size(), expected.tensors.size());
  }
  EXPECT_EQ(seen.size(), 4u * kNumTestedRecomputes);
  EXPECT_EQ(schedules.size(), 7u);  // One stage, and two or four in three ways.
  RecordProperty("worst_relative_difference", std::to_string(worst));
  std::cout << "worst relative difference: " << worst << std::endl;
}

// Goal: data replicas with different numbers of micro-batches change nothing
// that is learnt: each sample counts once, in the global batch's order, and
// gradients are those of the mean over all of it. Method: batches that three
// replicas, or more in groups, cannot share alike, under every axis, schedule
// and ZeRO stage that allows it, against one rank: losses, norms and, at the
// end, every tensor.
TEST(EquivalenceTest, UnevenLayoutsMatchOneRank) {
  // Test FamiliesMatchOneRank allows the same.
  constexpr double kTensorTolerance = 1e-3;
  for (const int32_t global_batch : {8, 16}) {
    JobSpec job = SmallJob();
    job.training.global_batch = global_batch;
    const JobResult expected =
        RunJob(job, {.micro_batch = global_batch}, kNumSteps);
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    std::vector<Layout> layouts = {
        {.data = 3, .micro_batch = 1, .zero = 0},
        {.data = 3, .micro_batch = 2, .zero = 1},
        {.data = 3, .tensor = 2, .micro_batch = 2, .zero = 0},
        {.data = 3, .tensor = 2, .micro_batch = 1, .zero = 1},
        {.pipeline = 2, .data = 3, .micro_batch = 1, .zero = 0},
        {.pipeline = 2, .data = 3, .micro_batch = 2, .zero = 1},
        {.pipeline = 2,
         .data = 3,
         .micro_batch = 1,
         .zero = 1,
         .schedule = Schedule::kZeroBubble},
        ListScheduled({.pipeline = 2, .data = 3, .micro_batch = 1}),
        {.data = 6, .data_groups = 3, .micro_batch = 1, .zero = 0},
        {.data = 6, .data_groups = 3, .micro_batch = 1, .zero = 1},
        {.data = 5, .micro_batch = 1, .zero = 1}};
    for (Layout& layout : layouts) {
      layout.ShareBatch(global_batch);
      SCOPED_TRACE(LayoutToString(layout));
      ASSERT_TRUE(layout.is_uneven());
      const JobResult result = RunJob(job, layout, kNumSteps);
      ASSERT_TRUE(result.status.ok()) << result.status;
      for (int64_t i = 0; i < kNumSteps; ++i) {
        ExpectClose(result.losses[i], expected.losses[i],
                    "loss of step " + std::to_string(i + 1));
        ExpectClose(result.gradient_norms[i], expected.gradient_norms[i],
                    "gradient norm of step " + std::to_string(i + 1));
      }
      ASSERT_EQ(result.tensors.size(), expected.tensors.size());
      for (const auto& [name, tensor] : expected.tensors) {
        EXPECT_LE(RelativeDifference(result.tensors.at(name), tensor),
                  kTensorTolerance)
            << name;
      }
    }
  }
}

// Goal: layouts change nothing that other families learn either: losses,
// gradient norms, and at the end every parameter. Method: each family under
// layouts that use every axis, ZeRO stage and schedule, against one rank.
TEST(EquivalenceTest, FamiliesMatchOneRank) {
  // Adam divides by gradients: an element that is nearly zero moves by its
  // sign, whatever rounding made of it.
  constexpr double kTensorTolerance = 1e-3;
  double worst_tensor = 0;
  for (const auto& [family, job] : JobsOfFamilies()) {
    const JobResult expected = RunJob(job, OneRank(), kNumSteps);
    ASSERT_TRUE(expected.status.ok()) << family << ": " << expected.status;
    EXPECT_LT(expected.losses.back(), expected.losses.front() - 0.3) << family;
    for (const Layout& layout :
         {Layout{.micro_batch = 2, .num_microbatches = 4},
          Layout{.tensor = 2, .micro_batch = 4, .num_microbatches = 2},
          Layout{.pipeline = 2, .micro_batch = 2, .num_microbatches = 4},
          Layout{.pipeline = 2,
          .micro_batch = 2,
          .num_microbatches = 4,
          .schedule = Schedule::kZeroBubble},
          Layout{.pipeline = 4, .micro_batch = 2, .num_microbatches = 4},
          Layout{.data = 2, .micro_batch = 4, .zero = 1},
          Layout{.data = 2,
          .tensor = 2,
          .micro_batch = 2,
          .num_microbatches = 2,
          .zero = 2},
          Layout{.data = 2,
          .micro_batch = 2,
          .num_microbatches = 2,
          .zero = 3,
          .recompute = Recompute::kFull},
          Layout{.pipeline = 2,
          .data = 2,
          .micro_batch = 2,
          .num_microbatches = 2,
          .zero = 1,
          .recompute = Recompute::kQkv}}) {
      SCOPED_TRACE(family + " under " + LayoutToString(layout));
      const JobResult result = RunJob(job, layout, kNumSteps);
      ASSERT_TRUE(result.status.ok()) << result.status;
      for (int64_t i = 0; i < kNumSteps; ++i) {
        ExpectClose(result.losses[i], expected.losses[i],
                    "loss of step " + std::to_string(i + 1));
        ExpectClose(result.gradient_norms[i], expected.gradient_norms[i],
                    "gradient norm of step " + std::to_string(i + 1));
      }
      ASSERT_EQ(result.tensors.size(), expected.tensors.size());
      for (const auto& [name, values] : expected.tensors) {
        // Softmax does not see a bias of keys that are not rotated.
        if (job.model.learned_positions > 0 &&
            absl::StrContains(name, "k_proj.bias")) {
          continue;
        }
        const double error =
            RelativeDifference(result.tensors.at(name), values);
        worst_tensor = std::max(worst_tensor, error);
        EXPECT_LE(error, kTensorTolerance) << name;
      }
    }
  }
  std::cout << "worst relative difference of a tensor: " << worst_tensor
            << std::endl;
}

// Goal: a document in a packed sequence teaches what it teaches alone, though
// its rotary positions are others: scores depend on distances alone. Method: so
// many documents of equal length, packed into sequences or a sequence each;
// losses, gradient norms and every moment of the first step, which is a tenth
// of the gradient, for each axis and with a window, which ends in a document.
TEST(EquivalenceTest, PackedDocumentsLearnWhatTheyLearnAlone) {
  constexpr int64_t kDocument = 8;
  double worst_gradient = 0;
  for (const int64_t window : {0, 3}) {
    JobSpec packed = SmallJob();
    packed.training.gradient_clip_norm = 0;
    packed.model.sliding_window = window;
    packed.model.qk_norm = window > 0;
    JobSpec alone = packed;
    const int64_t per_sequence = packed.model.sequence_length / kDocument;
    alone.model.sequence_length = kDocument;
    alone.training.global_batch *= per_sequence;
    const NewBatches new_batches = [&](const JobSpec& job) {
      return std::make_unique<PackedBatches>(
          job.model.vocab_size, job.model.sequence_length, kDocument);
    };
    const auto run_alone = [&](int64_t num_steps) {
      return RunJob(alone,
                    {.micro_batch = static_cast<int32_t>(8 * per_sequence)},
                    num_steps, new_batches);
    };
    const JobResult expected = run_alone(kNumSteps);
    const JobResult expected_first = run_alone(1);
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    EXPECT_LT(expected.losses.back(), expected.losses.front() - 0.3);
    for (const Layout& layout :
         {OneRank(), Layout{.tensor = 2, .micro_batch = 8},
          Layout{.pipeline = 2, .micro_batch = 2, .num_microbatches = 4},
          Layout{.data = 2, .micro_batch = 4, .zero = 1}}) {
      SCOPED_TRACE(LayoutToString(layout));
      const JobResult result = RunJob(packed, layout, kNumSteps, new_batches);
      ASSERT_TRUE(result.status.ok()) << result.status;
      for (int64_t i = 0; i < kNumSteps; ++i) {
        ExpectClose(result.losses[i], expected.losses[i],
                    "loss of step " + std::to_string(i + 1));
        ExpectClose(result.gradient_norms[i], expected.gradient_norms[i],
                    "gradient norm of step " + std::to_string(i + 1));
      }
      const JobResult first = RunJob(packed, layout, 1, new_batches);
      int num_moments = 0;
      for (const auto& [name, values] : expected_first.tensors) {
        if (!absl::StrContains(name, "exp_avg")) continue;
        ++num_moments;
        const double error = RelativeDifference(first.tensors.at(name), values);
        worst_gradient = std::max(worst_gradient, error);
        EXPECT_LE(error, kTolerance) << name;
      }
      EXPECT_GT(num_moments, 0);
    }
  }
  std::cout << "worst relative difference of a gradient: " << worst_gradient
            << std::endl;
}

// The largest relative differences between two runs, over all steps.
struct Differences {
  double loss = 0, norm = 0;

  void Add(const JobResult& run, const JobResult& expected) {
    for (int64_t i = 0; i < kNumSteps; ++i) {
      loss = std::max(loss, std::abs(run.losses[i] / expected.losses[i] - 1));
      norm = std::max(
          norm,
          std::abs(run.gradient_norms[i] / expected.gradient_norms[i] - 1));
    }
  }
};

std::ostream& operator<<(std::ostream& out, const Differences& d) {
  return out << "worst relative difference: losses " << d.loss << ", norms "
             << d.norm;
}

// Goal: gradients that replicas send each other in bf16 teach the same, up to
// their rounding, under every layout; and that rounding is there. Method: every
// layout with replicas against the single rank's run, and against itself with
// sums in fp32; every eighth twice, to the bit. Measured: losses within 1.3e-5,
// norms, whose every term is rounded to 8 bits once, or twice where the data
// axis is cut, within 4.2e-4.
TEST(EquivalenceTest, ReducingInBf16OnlyRounds) {
  constexpr double kLossTolerance = 1e-4;
  constexpr double kNormTolerance = 2e-3;
  const JobSpec job = SmallJob();
  const JobResult& expected = RunOf(OneRank());
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  Differences worst;
  int num_layouts = 0;
  for (Layout layout : SmallLayouts()) {
    if (layout.data == 1) continue;
    const JobResult& plain = RunOf(layout);
    ASSERT_TRUE(plain.status.ok()) << plain.status;
    layout.gradient_reduction = GradientReduction::kBfloat16;
    SCOPED_TRACE(LayoutToString(layout));
    const JobResult rounded = RunJob(job, layout, kNumSteps);
    ASSERT_TRUE(rounded.status.ok()) << rounded.status;
    worst.Add(rounded, expected);
    EXPECT_LE(worst.loss, kLossTolerance);
    EXPECT_LE(worst.norm, kNormTolerance);
    // The first step's loss is before any gradient.
    EXPECT_EQ(rounded.losses[0], plain.losses[0]);
    EXPECT_NE(rounded.gradient_norms[0], plain.gradient_norms[0]);
    EXPECT_NE(rounded.tensors, plain.tensors);
    if (num_layouts++ % 8 == 0) {
      EXPECT_EQ(RunJob(job, layout, kNumSteps).tensors, rounded.tensors);
    }
  }
  EXPECT_GE(num_layouts, 20);
  std::cout << worst << " of " << num_layouts << " layouts" << std::endl;
}

// Goal: gradients that only groups send each other in bf16 teach the same too,
// and bits differ from those of sums all in fp32 and all in bf16. Method: the
// layouts with groups, under every ZeRO stage, against the single rank's run,
// and against themselves with sums in fp32 and in bf16; each twice, to the bit.
// Measured: losses within 4.1e-6, norms within 1.3e-4.
TEST(EquivalenceTest, ReducingInBf16AcrossGroupsOnlyRounds) {
  constexpr double kLossTolerance = 3e-5;
  constexpr double kNormTolerance = 1e-3;
  const JobSpec job = SmallJob();
  const JobResult& expected = RunOf(OneRank());
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  Differences worst;
  int num_layouts = 0;
  for (Layout layout : SmallLayouts()) {
    if (layout.data_groups == 1) continue;
    const JobResult& plain = RunOf(layout);
    ASSERT_TRUE(plain.status.ok()) << plain.status;
    layout.gradient_reduction = GradientReduction::kBfloat16Across;
    SCOPED_TRACE(LayoutToString(layout));
    const JobResult across = RunJob(job, layout, kNumSteps);
    ASSERT_TRUE(across.status.ok()) << across.status;
    worst.Add(across, expected);
    EXPECT_LE(worst.loss, kLossTolerance);
    EXPECT_LE(worst.norm, kNormTolerance);
    EXPECT_EQ(across.losses[0], plain.losses[0]);
    EXPECT_NE(across.tensors, plain.tensors);
    EXPECT_EQ(RunJob(job, layout, kNumSteps).tensors, across.tensors);
    layout.gradient_reduction = GradientReduction::kBfloat16;
    EXPECT_NE(RunJob(job, layout, kNumSteps).tensors, across.tensors);
    ++num_layouts;
  }
  EXPECT_EQ(num_layouts, 8);
  std::cout << worst << " of " << num_layouts << " layouts" << std::endl;
}

void ExpectSameLayoutTwiceIsBitIdentical() {
  const JobSpec job = SmallJob();
  for (const Layout& layout :
       {Layout{.data = 2,
       .tensor = 2,
       .micro_batch = 2,
       .num_microbatches = 2,
       .zero = 1},
        Layout{
            .pipeline = 2, .data = 2, .micro_batch = 1, .num_microbatches = 4},
        Layout{.pipeline = 4, .micro_batch = 2, .num_microbatches = 4},
        Layout{.data = 4,
        .data_groups = 2,
        .micro_batch = 1,
        .num_microbatches = 2,
        .zero = 2},
        Layout{.data = 2,
        .tensor = 2,
        .micro_batch = 1,
        .num_microbatches = 4,
        .zero = 3,
        .recompute = Recompute::kFull},
        Layout{.pipeline = 2,
        .data = 2,
        .micro_batch = 2,
        .num_microbatches = 2,
        .zero = 2,
        .recompute = Recompute::kCheap},
        Layout{.tensor = 4, .micro_batch = 8}}) {
    SCOPED_TRACE(LayoutToString(layout));
    const JobResult first = RunJob(job, layout, kNumSteps);
    const JobResult second = RunJob(job, layout, kNumSteps);
    ASSERT_TRUE(first.status.ok()) << first.status;
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.gradient_norms, second.gradient_norms);
    EXPECT_EQ(first.validation_loss, second.validation_loss);
    EXPECT_EQ(first.tensors, second.tensors);
    EXPECT_FALSE(first.tensors.empty());
  }
}

// Goal: the same layout twice gives the same bits. Method: losses, norms and
// every parameter and moment of two runs, for layouts that use every axis,
// at every level of the instruction set.
TEST(EquivalenceTest, SameLayoutTwiceIsBitIdentical) {
  ForEachCpuLevel(ExpectSameLayoutTwiceIsBitIdentical);
}

// Goal: what is recomputed is what was computed before, to the bit. Method:
// losses, norms and tensors of runs that differ in nothing else, with every op
// alone and with those before it.
TEST(EquivalenceTest, RecomputeChangesNoBit) {
  const JobSpec job = SmallJob();
  for (Layout layout :
       {Layout{.micro_batch = 4, .num_microbatches = 2},
        Layout{.data = 2, .tensor = 2, .micro_batch = 4, .zero = 3},
        Layout{.pipeline = 2,
        .tensor = 2,
        .micro_batch = 2,
        .num_microbatches = 4},
        Layout{.pipeline = 2,
        .micro_batch = 2,
        .num_microbatches = 4,
        .schedule = Schedule::kZeroBubble}}) {
    SCOPED_TRACE(LayoutToString(layout));
    const JobResult kept = RunJob(job, layout, kNumSteps);
    ASSERT_TRUE(kept.status.ok()) << kept.status;
    std::set<Recompute> sets = {Recompute::kFull};
    Recompute all = Recompute::kNone;
    for (const Recompute op : kRecomputeOps) {
      const bool needs_norm = op == Recompute::kOutput;
      sets.insert(needs_norm ? op | Recompute::kNorm : op);
      sets.insert(all = all | op);
    }
    for (const Recompute recompute : sets) {
      layout.recompute = recompute;
      SCOPED_TRACE(RecomputeName(recompute));
      const JobResult again = RunJob(job, layout, kNumSteps);
      ASSERT_TRUE(again.status.ok()) << again.status;
      EXPECT_EQ(again.losses, kept.losses);
      EXPECT_EQ(again.gradient_norms, kept.gradient_norms);
      EXPECT_EQ(again.tensors, kept.tensors);
    }
  }
}

// Goal: the order of passes, and with it the prices that list scheduling orders
// them by, change no bit. Method: losses, norms and tensors under each schedule
// and under two lists whose prices are far apart.
TEST(EquivalenceTest, OrderOfPassesChangesNoBit) {
  const JobSpec job = SmallJob();
  for (const int32_t zero : {0, 1}) {
    const Layout plain = {.pipeline = 2,
                          .data = 2,
                          .micro_batch = 1,
                          .num_microbatches = 4,
                          .zero = zero};
    Layout zero_bubble = plain;
    zero_bubble.schedule = Schedule::kZeroBubble;
    const Layout listed = ListScheduled(plain);
    Layout other_prices = listed;
    other_prices.listed_transfer_us = 1;
    other_prices.listed_stages[0].forward_us *= 20;
    other_prices.listed_stages[1].weight_gradient_us *= 20;
    for (ListedStage& stage : other_prices.listed_stages) {
      stage.memory_bytes *= 2;
    }
    ASSERT_NE(*ListedOrder(listed), *ListedOrder(other_prices));
    const JobResult& expected = RunOf(plain);
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    for (const Layout& layout : {zero_bubble, listed, other_prices}) {
      SCOPED_TRACE(LayoutToString(layout));
      const JobResult& result = RunOf(layout);
      ASSERT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.losses, expected.losses);
      EXPECT_EQ(result.gradient_norms, expected.gradient_norms);
      EXPECT_EQ(result.tensors, expected.tensors);
    }
  }
}

// Goal: Gloo connections carry the same run, to the bit, as in-process ones.
// Method: ranks as threads, each with connections of its own.
TEST(EquivalenceTest, GlooGivesTheSameBits) {
  const JobSpec job = SmallJob();
  for (const Layout& layout :
       {Layout{.pipeline = 2,
       .tensor = 2,
       .micro_batch = 2,
       .num_microbatches = 4},
        Layout{.data = 2, .tensor = 2, .micro_batch = 4, .zero = 1}}) {
    SCOPED_TRACE(LayoutToString(layout));
    MemoryRendezvousStore store;
    const JobResult gloo = RunJob(job, layout, kNumSteps, [&] {
      auto factory =
          CreateGlooFactory({.store = &store, .host_address = "127.0.0.1"});
      EXPECT_TRUE(factory.ok()) << factory.status();
      return *std::move(factory);
    });
    ASSERT_TRUE(gloo.status.ok()) << gloo.status;
    const JobResult in_process = RunJob(job, layout, kNumSteps);
    EXPECT_EQ(gloo.losses, in_process.losses);
    EXPECT_EQ(gloo.tensors, in_process.tensors);
  }
}

// Goal: validation gives the same loss under layouts that cover the same
// sequences, near the training loss. Method: layouts whose micro-batch times
// data is 8.
TEST(EquivalenceTest, ValidationDoesNotDependOnLayout) {
  const JobSpec job = SmallJob();
  const JobResult expected = RunJob(job, OneRank(), 3);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  EXPECT_NEAR(expected.validation_loss, expected.losses.back(), 0.1);
  for (const Layout& layout :
       {Layout{.pipeline = 2, .tensor = 2, .micro_batch = 8},
        Layout{.data = 4, .micro_batch = 2},
        Layout{.data = 2, .tensor = 2, .micro_batch = 4}}) {
    SCOPED_TRACE(LayoutToString(layout));
    const JobResult result = RunJob(job, layout, 3);
    ASSERT_TRUE(result.status.ok()) << result.status;
    ExpectClose(result.validation_loss, expected.validation_loss,
                "validation loss");
  }
}

}  // namespace
}  // namespace millrace
