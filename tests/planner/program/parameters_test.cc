#include "planner/program/parameters.h"

#include <map>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// Sizes that are no multiples of the bucket alignment.
ModelSpec OddModel() {
  return {.vocab_size = 52,
          .hidden = 20,
          .num_layers = 5,
          .num_heads = 4,
          .num_kv_heads = 4,
          .head_dim = 6,
          .ffn_hidden = 28,
          .sequence_length = 12};
}

// With all options that change which parameters there are.
ModelSpec ModelOfOptions() {
  ModelSpec model = OddModel();
  model.ties_embedding = true;
  model.qkv_bias = true;
  model.qk_norm = true;
  return model;
}

// GPT-2's: a table of positions, LayerNorm, one inner projection, biases.
ModelSpec ModelOfGpt2() {
  ModelSpec model = OddModel();
  model.learned_positions = 16;
  model.norm = NormKind::kLayer;
  model.feed_forward = FeedForward::kGelu;
  model.qkv_bias = model.linear_bias = model.ties_embedding = true;
  return model;
}

// Gemma 3's: norms of outputs too, weights less one.
ModelSpec ModelOfGemma() {
  ModelSpec model = OddModel();
  model.feed_forward = FeedForward::kGeglu;
  model.output_norms = model.norm_adds_one = model.qk_norm = true;
  model.ties_embedding = true;
  return model;
}

// Goal: over all tensor ranks each element of a sharded parameter is in exactly
// one box, of a replicated one in every box. Method: count by element.
TEST(TensorBoxTest, TilesEachParameterExactly) {
  for (int32_t tensor : {1, 2, 4}) {
    std::vector<Parameter> parameters = ModelParameters(ModelOfOptions());
    for (const ModelSpec& model : {ModelOfGpt2(), ModelOfGemma()}) {
      for (Parameter& parameter : ModelParameters(model)) {
        parameters.push_back(std::move(parameter));
      }
    }
    for (const Parameter& parameter : parameters) {
      std::vector<int> count(parameter.rows * parameter.cols);
      for (int32_t i = 0; i < tensor; ++i) {
        const ParameterBox box = TensorBox(parameter, tensor, i);
        for (int64_t r = box.row_begin; r < box.row_end; ++r) {
          for (int64_t c = box.col_begin; c < box.col_end; ++c) {
            ++count[r * parameter.cols + c];
          }
        }
      }
      const int expected =
          parameter.shard == TensorShard::kReplicated ? tensor : 1;
      EXPECT_EQ(count, std::vector<int>(count.size(), expected))
          << parameter.name << " over " << tensor;
    }
  }
}

// Goal: every parameter has its place on exactly one stage, in slots that
// neither overlap nor leave their bucket, in buckets that tile the flat buffer
// and divide over the data axis. A tied embedding has a copy on the last stage.
// Method: sweep layouts of both models.
void ExpectEveryParameterPlacedOnce(const ModelSpec& model) {
  for (int32_t pipeline : {1, 2, 5}) {
    for (int32_t tensor : {1, 2, 4}) {
      for (int32_t data : {1, 3}) {
        for (int32_t zero : {0, 1, 3}) {
          const Layout layout{.pipeline = pipeline,
                              .data = data,
                              .tensor = tensor,
                              .zero = zero,
                              .moments = zero == 3 ? MomentFormat::kBlocks8
                                                   : MomentFormat::kFloat32};
          SCOPED_TRACE(LayoutToString(layout));
          EXPECT_EQ(BucketAlignment(layout),
                    zero == 3 ? kMomentBlock : kBucketAlignment);
          std::multiset<std::string> placed;
          for (int32_t stage = 0; stage < pipeline; ++stage) {
            const StageParameters stage_parameters =
                BuildStageParameters(model, layout, stage);
            int64_t end = 0, optimizer = 0;
            size_t num_slots = 0;
            for (const Bucket& bucket : stage_parameters.buckets) {
              EXPECT_EQ(bucket.offset, end);
              EXPECT_EQ(bucket.num_elements % (data * BucketAlignment(layout)),
                        0);
              optimizer += bucket.num_elements / (zero >= 1 ? data : 1);
              int64_t slot_end = bucket.offset;
              for (int32_t idx : bucket.slots) {
                const ParameterSlot& slot = stage_parameters.slots[idx];
                EXPECT_GE(slot.offset, slot_end);
                slot_end = slot.offset + slot.local_rows * slot.local_cols;
                EXPECT_EQ(slot.parameter.is_vector, !bucket.weight_decay);
                if (!bucket.is_copy) placed.insert(slot.parameter.name);
                ++num_slots;
              }
              end = bucket.offset + bucket.num_elements;
              EXPECT_LE(slot_end, end);
            }
            EXPECT_EQ(end, stage_parameters.num_elements);
            EXPECT_EQ(optimizer, stage_parameters.num_optimizer_elements);
            EXPECT_EQ(num_slots, stage_parameters.slots.size());
          }
          std::multiset<std::string> expected;
          for (const Parameter& parameter : ModelParameters(model)) {
            expected.insert(parameter.name);
          }
          EXPECT_EQ(placed, expected);
        }
      }
    }
  }
}

TEST(BuildStageParametersTest, PlacesEveryParameterOnce) {
  ExpectEveryParameterPlacedOnce(OddModel());
  ExpectEveryParameterPlacedOnce(ModelOfOptions());
  ExpectEveryParameterPlacedOnce(ModelOfGpt2());
  ExpectEveryParameterPlacedOnce(ModelOfGemma());
}

// Goal: q, k, v are adjacent, and gate and up, so that each is one GEMM
// operand; and so are the biases of q, k, v. Method: compare ends and
// beginnings.
TEST(BuildStageParametersTest, KeepsFusedMatricesAdjacent) {
  const StageParameters stage =
      BuildStageParameters(ModelOfOptions(), {.tensor = 2}, 0);
  int num_adjacent = 0;
  for (size_t i = 1; i < stage.slots.size(); ++i) {
    const ParameterSlot& slot = stage.slots[i];
    const ParameterSlot& before = stage.slots[i - 1];
    if (absl::EndsWith(slot.parameter.name, "k_proj.weight") ||
        absl::EndsWith(slot.parameter.name, "v_proj.weight") ||
        absl::EndsWith(slot.parameter.name, "k_proj.bias") ||
        absl::EndsWith(slot.parameter.name, "v_proj.bias") ||
        absl::EndsWith(slot.parameter.name, "up_proj.weight")) {
      EXPECT_EQ(slot.offset,
                before.offset + before.local_rows * before.local_cols);
      if (!slot.parameter.is_vector) {
        EXPECT_EQ(slot.local_cols, before.local_cols);
      }
      ++num_adjacent;
    } else {
      EXPECT_EQ(slot.offset % kBucketAlignment, 0) << slot.parameter.name;
    }
  }
  EXPECT_EQ(num_adjacent, 5 * 5);
}

// Goal: the slots hold the model's parameters, no more. Method: sum over a
// single rank against CountParameters.
TEST(BuildStageParametersTest, AgreesWithTheModelsCount) {
  for (const ModelSpec& model : {OddModel(), ModelOfOptions()}) {
    int64_t total = 0;
    for (const ParameterSlot& slot : BuildStageParameters(model, {}, 0).slots) {
      total += slot.local_rows * slot.local_cols;
    }
    EXPECT_EQ(total, CountParameters(model).total);
  }
}

// Goal: parameters have the names, shapes and order of Hugging Face's Qwen2 and
// Qwen3, and start as those do. Method: one layer's, spelled out.
// Goal: the norms of outputs have the names and the order of Gemma's, and
// weights that count from one begin at zero. Method: compare names.
TEST(ModelParametersTest, NamesNormsOfOutputsAsGemmaDoes) {
  const ModelSpec model = ModelOfGemma();
  std::vector<std::string> norms;
  for (const Parameter& parameter : ModelParameters(model)) {
    if (!parameter.is_of_norm) continue;
    EXPECT_EQ(InitialVectorValue(model, parameter.name), 0);
    absl::string_view name = parameter.name;
    if (absl::ConsumePrefix(&name, "model.layers.3.")) {
      norms.push_back(std::string(name));
    }
  }
  EXPECT_EQ(norms,
            (std::vector<std::string>{
                "input_layernorm.weight", "self_attn.q_norm.weight",
                "self_attn.k_norm.weight", "post_attention_layernorm.weight",
                "pre_feedforward_layernorm.weight",
                "post_feedforward_layernorm.weight"}));
}

TEST(ModelParametersTest, NamesOptionsAsHuggingFaceDoes) {
  std::vector<std::string> vectors;
  const ModelSpec model = ModelOfOptions();
  for (const Parameter& parameter : ModelParameters(model)) {
    EXPECT_NE(parameter.name, "lm_head.weight");
    if (!parameter.is_vector ||
        !absl::StartsWith(parameter.name, "model.layers.3.self_attn.")) {
      continue;
    }
    vectors.push_back(absl::StrCat(parameter.name, " ", parameter.cols, " ",
                                   InitialVectorValue(model, parameter.name)));
  }
  const std::string layer = "model.layers.3.self_attn.";
  EXPECT_EQ(vectors,
            (std::vector<std::string>{
                layer + "q_proj.bias 24 0", layer + "k_proj.bias 24 0",
                layer + "v_proj.bias 24 0", layer + "q_norm.weight 6 1",
                layer + "k_norm.weight 6 1"}));
}

}  // namespace
}  // namespace millrace
