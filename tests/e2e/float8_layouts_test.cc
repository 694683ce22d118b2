// Trains a small job in 8 bits on CPUs under every kind of layout.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "planner/layout/layout.h"
#include "tests/e2e/equivalence_job.h"

namespace millrace {
namespace {

constexpr int64_t kNumFloat8Steps = 12;

JobSpec Float8Job() {
  JobSpec job = SmallJob();
  job.training.precision = "fp8";
  return job;
}

Layout InFloat8(Layout layout) {
  layout.gemm_format = GemmFormat::kFloat8;
  return layout;
}

// The largest relative difference of a loss or gradient norm.
double WorstFloat8Difference(const JobResult& a, const JobResult& b) {
  double worst = std::abs(a.validation_loss / b.validation_loss - 1);
  for (size_t i = 0; i < b.losses.size(); ++i) {
    worst = std::max(worst, std::abs(a.losses[i] / b.losses[i] - 1));
    worst = std::max(worst,
                     std::abs(a.gradient_norms[i] / b.gradient_norms[i] - 1));
  }
  return worst;
}

// Goal: 8 bits learn what fp32 learns, and are 8 bits. Method: losses over some
// steps beside fp32's; equal runs, equal bits. Rounding to 3 bits of mantissa
// costs a few thousandths of a loss here; a wrong scale, transpose or operand
// costs far more.
TEST(Float8LayoutsTest, LearnsWhatFloat32Learns) {
  for (const auto& [family, base] : JobsOfFamilies()) {
    SCOPED_TRACE(family);
    JobSpec job = base;
    const Layout layout = {.micro_batch = 4, .num_microbatches = 2};
    const JobResult expected = RunJob(job, layout, kNumFloat8Steps);
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    job.training.precision = "fp8";
    const JobResult result = RunJob(job, InFloat8(layout), kNumFloat8Steps);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_LT(result.losses.back(), result.losses.front() - 0.1);
    for (size_t i = 0; i < result.losses.size(); ++i) {
      EXPECT_NEAR(result.losses[i] / expected.losses[i], 1, 1e-2) << i;
    }
    EXPECT_NE(result.losses[0], expected.losses[0]);
    EXPECT_EQ(RunJob(job, InFloat8(layout), kNumFloat8Steps).tensors,
              result.tensors);
  }
}

// Goal: where tensors have the scales of the single rank, layouts give its
// numbers: stages of a pipeline, ZeRO's slices and recompute change no scale.
// Method: losses, norms and validation loss beside those of one rank with the
// same micro-batches. Other sums in fp32 move a few numbers over the middle
// between two 8-bit ones; measured: within 5.1e-3 after twelve steps.
TEST(Float8LayoutsTest, EqualScalesGiveEqualNumbers) {
  const JobSpec job = Float8Job();
  const auto run = [&](const Layout& layout) {
    return RunJob(job, InFloat8(layout), kNumFloat8Steps);
  };
  const JobResult alone = run({.micro_batch = 2, .num_microbatches = 4});
  ASSERT_TRUE(alone.status.ok()) << alone.status;
  for (const Layout& layout :
       {Layout{.pipeline = 2, .micro_batch = 2, .num_microbatches = 4},
        Layout{.pipeline = 2,
        .micro_batch = 2,
        .num_microbatches = 4,
        .schedule = Schedule::kZeroBubble},
        Layout{.data = 2, .micro_batch = 2, .num_microbatches = 2},
        Layout{.data = 2, .micro_batch = 2, .num_microbatches = 2, .zero = 1},
        Layout{.data = 2, .micro_batch = 2, .num_microbatches = 2, .zero = 2},
        Layout{.data = 2, .micro_batch = 2, .num_microbatches = 2, .zero = 3},
        Layout{.data = 4, .data_groups = 2, .micro_batch = 2, .zero = 1},
        Layout{.data = 4, .data_groups = 2, .micro_batch = 2, .zero = 3}}) {
    SCOPED_TRACE(LayoutToString(layout));
    const JobResult result = run(layout);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_LE(WorstFloat8Difference(result, alone), 1e-2);
  }
  // The same arithmetic in the same order.
  for (int set = 1; set <= static_cast<int>(Recompute::kFull); ++set) {
    const Layout layout = {.micro_batch = 2,
                           .num_microbatches = 4,
                           .recompute = static_cast<Recompute>(set)};
    if (!ValidateLayout(job.model, layout, 8).ok()) continue;
    SCOPED_TRACE(LayoutToString(layout));
    const JobResult result = run(layout);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.losses, alone.losses);
    EXPECT_EQ(result.tensors, alone.tensors);
  }
}

// Goal: layers at the ends multiply what is stored if the job says so, on any
// stage. Method: with all four layers at an end the numbers are those of fp32;
// with two of four they are neither those nor those of 8 bits, whether stages
// have one kind of layer or two.
TEST(Float8LayoutsTest, EndLayersStayAsStored) {
  const Layout layout = {.micro_batch = 2, .num_microbatches = 4};
  const JobResult plain = RunJob(SmallJob(), layout, kNumFloat8Steps);
  ASSERT_TRUE(plain.status.ok()) << plain.status;
  JobSpec job = Float8Job();
  job.model.stored_end_layers = 2;
  const JobResult none = RunJob(job, InFloat8(layout), kNumFloat8Steps);
  ASSERT_TRUE(none.status.ok()) << none.status;
  EXPECT_EQ(none.losses, plain.losses);
  EXPECT_EQ(none.tensors, plain.tensors);
  const JobResult all = RunJob(Float8Job(), InFloat8(layout), kNumFloat8Steps);
  job.model.stored_end_layers = 1;
  const JobResult half = RunJob(job, InFloat8(layout), kNumFloat8Steps);
  ASSERT_TRUE(half.status.ok()) << half.status;
  EXPECT_NE(half.losses, plain.losses);
  EXPECT_NE(half.losses, all.losses);
  for (const int32_t stages : {2, 4}) {
    Layout cut = layout;
    cut.pipeline = stages;
    SCOPED_TRACE(stages);
    const JobResult result = RunJob(job, InFloat8(cut), kNumFloat8Steps);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_LE(WorstFloat8Difference(result, half), 1e-2);
  }
  Layout recomputed = layout;
  recomputed.recompute = Recompute::kFull;
  EXPECT_EQ(RunJob(job, InFloat8(recomputed), kNumFloat8Steps).losses,
            half.losses);
}

// Goal: where scales differ, since a tensor rank has a shard of a tensor and a
// micro-batch other sequences, losses differ by the noise of 8 bits alone.
// Method: beside the single rank, with recompute of every kind.
TEST(Float8LayoutsTest, OtherScalesGiveTheNoiseOf8Bits) {
  const JobSpec job = Float8Job();
  const JobResult alone =
      RunJob(job, InFloat8({.micro_batch = 4, .num_microbatches = 2}),
             kNumFloat8Steps);
  ASSERT_TRUE(alone.status.ok()) << alone.status;
  const auto sets = {Recompute::kNone,
                     Recompute::kNorm,
                     Recompute::kNorm | Recompute::kActivation,
                     Recompute::kGateUp,
                     Recompute::kQkv,
                     Recompute::kFull};
  for (const Recompute recompute : sets) {
    for (Layout layout :
         {Layout{.tensor = 2, .micro_batch = 4, .num_microbatches = 2},
          Layout{.data = 2,
          .tensor = 2,
          .micro_batch = 2,
          .num_microbatches = 2,
          .zero = 3},
          Layout{.pipeline = 2,
          .tensor = 2,
          .micro_batch = 4,
          .num_microbatches = 2},
          Layout{.tensor = 4, .micro_batch = 8}}) {
      layout.recompute = recompute;
      SCOPED_TRACE(LayoutToString(layout));
      const JobResult result = RunJob(job, InFloat8(layout), kNumFloat8Steps);
      ASSERT_TRUE(result.status.ok()) << result.status;
      for (size_t i = 0; i < result.losses.size(); ++i) {
        EXPECT_NEAR(result.losses[i] / alone.losses[i], 1, 1e-2) << i;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
