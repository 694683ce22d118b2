// Trains a small job on CPUs with attention's forward pass in 8 bits, under
// every kind of layout.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "planner/layout/layout.h"
#include "tests/e2e/equivalence_job.h"
#include "tests/e2e/numbers_of_one_rank.h"

namespace millrace {
namespace {

constexpr int64_t kNumAttentionSteps = 12;

// Heads that attention in 8 bits takes, and sequences of two blocks of queries,
// the last of which is short. The wider model learns at a lower rate.
void MakeRoomForHeads(JobSpec* job) {
  ModelSpec& model = job->model;
  model.hidden = 128;
  model.num_layers = 2;
  model.num_heads = 2;
  model.num_kv_heads = std::min<int64_t>(model.num_kv_heads, 2);
  model.head_dim = 64;
  model.sequence_length = 144;
  if (model.learned_positions > 0) model.learned_positions = 160;
  if (model.rotary_dim > 0) {
    model.rotary_dim = 0;
    model.rope_factors.assign(32, 1.5);
  }
  job->training.optimizer.learning_rate = 5e-4;
}

JobSpec AttentionJob() {
  JobSpec job = SmallJob();
  MakeRoomForHeads(&job);
  job.model.attention_format = AttentionFormat::kFloat8;
  return job;
}

// Goal: families of models learn with attention in 8 bits what they learn in
// fp32, beside products as stored and in 8 bits, and equal runs give equal
// bits. Method: losses over some steps, within 0.25 %; with products in 8 bits,
// in their band. Models whose attention has a window or a softcap are refused.
TEST(Float8AttentionTest, LearnsWhatFloat32Learns) {
  double worst = 0;
  int num_families = 0;
  for (const auto& [family, base] : JobsOfFamilies()) {
    SCOPED_TRACE(family);
    JobSpec job = base;
    MakeRoomForHeads(&job);
    const Layout layout = {.micro_batch = 4, .num_microbatches = 2};
    job.model.attention_format = AttentionFormat::kFloat8;
    const absl::Status valid = ValidateModel(job.model);
    const bool can_be =
        job.model.sliding_window == 0 && job.model.attention_softcap == 0;
    ASSERT_EQ(valid.ok(), can_be) << valid;
    if (!can_be) continue;
    const JobResult result = RunJob(job, layout, kNumAttentionSteps);
    ASSERT_TRUE(result.status.ok()) << result.status;
    job.model.attention_format = AttentionFormat::kAsStored;
    const JobResult expected = RunJob(job, layout, kNumAttentionSteps);
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    EXPECT_LT(result.losses.back(), result.losses.front() - 0.1);
    EXPECT_NE(result.losses[0], expected.losses[0]);
    for (size_t i = 0; i < result.losses.size(); ++i) {
      const double ratio = result.losses[i] / expected.losses[i];
      EXPECT_NEAR(ratio, 1, 2.5e-3) << i;
      worst = std::max(worst, std::abs(ratio - 1));
    }
    if (num_families++ > 1) continue;
    job.model.attention_format = AttentionFormat::kFloat8;
    EXPECT_EQ(RunJob(job, layout, kNumAttentionSteps).tensors, result.tensors);
    job.training.precision = "fp8";
    Layout in_float8 = layout;
    in_float8.gemm_format = GemmFormat::kFloat8;
    const JobResult both = RunJob(job, in_float8, kNumAttentionSteps);
    ASSERT_TRUE(both.status.ok()) << both.status;
    EXPECT_NE(both.losses[0], result.losses[0]);
    EXPECT_NEAR(both.losses.back() / expected.losses.back(), 1, 1e-2);
  }
  EXPECT_GE(num_families, 5);
  std::printf("largest difference of a loss from fp32: %.2g\n", worst);
}

// Goal: scales are of a head's tokens, so no layout changes them: the first
// step has the single rank's numbers, and later ones differ by less than 8 bits
// would if scales did. Method: losses and gradient norms beside those of one
// rank. Other sums in fp32 move a few numbers over the middle between two 8-bit
// ones; measured: losses within 2e-5, norms within 4e-4, in twelve steps.
TEST(Float8AttentionTest, LayoutsGiveTheNumbersOfOneRank) {
  ExpectNumbersOfOneRank(
      AttentionJob(), GemmFormat::kAsStored, kNumAttentionSteps,
      {.first_loss = 1e-6, .first_norm = 1e-4, .loss = 1e-3, .norm = 1e-2});
}

// Goal: recompute changes no bit, whatever it recomputes; layers at the ends
// may attend to what is stored. Method: all sets that the layout allows, over
// few steps; all layers at an end give fp32's numbers.
TEST(Float8AttentionTest, RecomputeAndEndLayersKeepTheirBits) {
  constexpr int64_t kFewSteps = 2;
  JobSpec job = AttentionJob();
  const Layout layout = {.micro_batch = 2, .num_microbatches = 2};
  const JobResult alone = RunJob(job, layout, kFewSteps);
  ASSERT_TRUE(alone.status.ok()) << alone.status;
  for (int set = 1; set <= static_cast<int>(Recompute::kFull); ++set) {
    Layout recomputed = layout;
    recomputed.recompute = static_cast<Recompute>(set);
    if (!ValidateLayout(job.model, recomputed, layout.global_batch()).ok())
      continue;
    SCOPED_TRACE(LayoutToString(recomputed));
    const JobResult result = RunJob(job, recomputed, kFewSteps);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.losses, alone.losses);
    EXPECT_EQ(result.tensors, alone.tensors);
  }
  job.model.stored_end_layers = 1;
  const JobResult stored = RunJob(job, layout, kFewSteps);
  ASSERT_TRUE(stored.status.ok()) << stored.status;
  job.model.attention_format = AttentionFormat::kAsStored;
  job.model.stored_end_layers = 0;
  EXPECT_EQ(stored.tensors, RunJob(job, layout, kFewSteps).tensors);
  EXPECT_NE(stored.losses, alone.losses);
}

}  // namespace
}  // namespace millrace
