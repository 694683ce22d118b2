#include "planner/learn/step_mix.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/program/ops.h"

namespace millrace {
namespace {

constexpr ModelSpec kSmallModel = {.vocab_size = 32000,
                                   .hidden = 640,
                                   .num_layers = 6,
                                   .num_heads = 10,
                                   .num_kv_heads = 10,
                                   .head_dim = 64,
                                   .ffn_hidden = 1728,
                                   .sequence_length = 770};

Layout WithMicroBatch(int32_t micro_batch, int32_t tensor = 1) {
  return {.tensor = tensor,
          .micro_batch = micro_batch,
          .num_microbatches = std::max(1, 8 / micro_batch),
          .precision = Precision::kBfloat16};
}

// Goal: each micro-batch has a mix of its own ops, those of both passes of all
// layers of a small model, as they run on one rank.
TEST(StepMixTest, EachMicroBatchHasItsOwnOps) {
  const std::vector<StepMix> mixes =
      MixesOf(kSmallModel,
              {WithMicroBatch(4, 2), WithMicroBatch(4), WithMicroBatch(1, 2)});
  ASSERT_EQ(mixes.size(), 2);
  EXPECT_EQ(mixes[0].micro_batch, 1);
  EXPECT_EQ(mixes[1].micro_batch, 4);
  for (const StepMix& mix : mixes) {
    int num_attention = 0;
    int64_t num_updated = 0;
    for (const ProfileOp& op : mix.ops) {
      EXPECT_EQ(op.micro_batch, mix.micro_batch);
      if (const auto* o = std::get_if<OptimizerAttributes>(&op.attributes);
          o != nullptr && op.kind == OpKind::kAdamW) {
        num_updated += o->num_elements;
      }
      const auto* a = std::get_if<AttentionAttributes>(&op.attributes);
      if (op.kind != OpKind::kAttentionForward) continue;
      ++num_attention;
      EXPECT_EQ(a->num_sequences, mix.micro_batch);
      EXPECT_EQ(a->num_heads, kSmallModel.num_heads);
    }
    EXPECT_EQ(num_attention, kSmallModel.num_layers);
    // The optimizer's work is divided among the micro-batches of the step.
    EXPECT_NEAR(static_cast<double>(num_updated) * 8 / mix.micro_batch /
                    static_cast<double>(CountParameters(kSmallModel).total),
                1, 1e-3);
  }
}

// Goal: mixes stay few and short, whatever the number of micro-batches.
TEST(StepMixTest, LongMicroBatchesAreLeftOut) {
  std::vector<Layout> layouts;
  for (int32_t micro_batch = 1; micro_batch <= 4096; micro_batch *= 2) {
    layouts.push_back(WithMicroBatch(micro_batch));
  }
  const std::vector<StepMix> mixes = MixesOf(kSmallModel, layouts);
  EXPECT_EQ(mixes.size(), 6);
  EXPECT_EQ(mixes.front().micro_batch, 1);
  EXPECT_LT(mixes.back().micro_batch, 1024);
  for (const StepMix& mix : mixes) {
    for (const ProfileOp& op : mix.ops) {
      EXPECT_LE(LoadOf(op), 2e12) << OpKindName(op.kind);
    }
  }
  // The smallest is there even where its ops are long: one layer of it.
  const std::vector<StepMix> large =
      MixesOf(kSmallModel, {WithMicroBatch(4096)});
  ASSERT_EQ(large.size(), 1);
  for (const ProfileOp& op : large[0].ops) {
    EXPECT_FALSE(std::holds_alternative<VocabAttributes>(op.attributes));
  }
}

// Goal: an op is timed among the mix whose micro-batch is closest as a ratio.
TEST(StepMixTest, TheClosestMixIsChosenByRatio) {
  const std::vector<StepMix> mixes = {{.micro_batch = 1, .ops = {}},
                                      {.micro_batch = 4, .ops = {}},
                                      {.micro_batch = 32, .ops = {}}};
  EXPECT_EQ(ClosestMix(mixes, 1), 0);
  EXPECT_EQ(ClosestMix(mixes, 3), 1);
  EXPECT_EQ(ClosestMix(mixes, 10), 1);
  EXPECT_EQ(ClosestMix(mixes, 12), 2);
  EXPECT_EQ(ClosestMix(mixes, 512), 2);
}

}  // namespace
}  // namespace millrace
