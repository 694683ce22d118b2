#include "planner/layout/model.h"

#include <functional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/planner/known_models.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

ModelSpec Llama7B() {
  return {.vocab_size = 32000,
          .hidden = 4096,
          .num_layers = 32,
          .num_heads = 32,
          .num_kv_heads = 32,
          .head_dim = 128,
          .ffn_hidden = 11008,
          .sequence_length = 4096};
}

// Goal: the counts are those of a model everyone can look up. Method: Llama 2
// 7B, whose published checkpoint holds 6,738,415,616 parameters.
TEST(CountParametersTest, AgreesWithAPublishedModel) {
  const ParameterCounts counts = CountParameters(Llama7B());
  EXPECT_EQ(counts.total, 6738415616);
  EXPECT_EQ(counts.embedding, int64_t{32000} * 4096);
  EXPECT_EQ(counts.head, counts.embedding);
  EXPECT_EQ(counts.embedding + 32 * counts.per_layer + counts.final_norm +
                counts.head,
            counts.total);
}

// Goal: counts of every kind of model are those of models that anyone can look
// up, all and active. Method: totals and active parameters in billions as the
// papers and model cards print them; what ModelSpec leaves out (biases,
// position embeddings, norms of query and key) is far below their last digit.
TEST(CountParametersTest, AgreesWithPublishedModelsOfEveryKind) {
  const struct {
    const char* name;
    ModelSpec model;
    double total, active, tolerance;  // In billions; 0: not published.
  } known[] = {
      {"Llama 3 8B", Llama3_8B(), 8.03, 8.03, 0.005},
      {"Llama 3 70B", Llama3_70B(), 70.6, 70.6, 0.05},
      {"Llama 3.1 405B", Llama3_405B(), 405.9, 405.9, 0.06},
      {"GPT-3 175B", Gpt3_175B(), 174.6, 174.6, 0.1},
      {"Nemotron-4 15B", Nemotron4_15B(), 15.6, 15.6, 0.1},
      {"Nemotron-4 340B", Nemotron4_340B(), 341.0, 341.0, 0.1},
      {"Mixtral 8x7B", Mixtral8x7B(), 46.7, 12.9, 0.05},
      {"Qwen3-30B-A3B", Qwen3_30B_A3B(), 30.5, 3.3, 0.06},
      {"Qwen3-235B-A22B", Qwen3_235B_A22B(), 235.1, 22.2, 0.06},
      // The card says 37 B active, without the input embedding's 0.9.
      {"DeepSeek-V3", DeepSeekV3(), 671.0, 37.5, 0.1},
      {"Moonlight-16B-A3B", Moonlight16B(), 15.96, 0, 0.01},
  };
  for (const auto& [name, model, total, active, tolerance] : known) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(ValidateModel(model).ok()) << ValidateModel(model);
    const ParameterCounts counts = CountParameters(model);
    EXPECT_NEAR(static_cast<double>(counts.total) / 1e9, total, tolerance);
    if (active > 0) {
      EXPECT_NEAR(static_cast<double>(counts.active) / 1e9, active, tolerance);
    }
  }
}

// Goal: options of other families count to the last parameter. Method: models
// whose published checkpoints hold as many parameters as their cards say.
TEST(CountParametersTest, CountsOptionsOfFamilies) {
  const ModelSpec llama32_1b = {.vocab_size = 128256,
                                .hidden = 2048,
                                .num_layers = 16,
                                .num_heads = 32,
                                .num_kv_heads = 8,
                                .head_dim = 64,
                                .ffn_hidden = 8192,
                                .sequence_length = 8192,
                                .ties_embedding = true};
  EXPECT_EQ(CountParameters(llama32_1b).total, 1235814400);
  const ModelSpec qwen25_1_5b = {.vocab_size = 151936,
                                 .hidden = 1536,
                                 .num_layers = 28,
                                 .num_heads = 12,
                                 .num_kv_heads = 2,
                                 .head_dim = 128,
                                 .ffn_hidden = 8960,
                                 .sequence_length = 8192,
                                 .ties_embedding = true,
                                 .qkv_bias = true};
  EXPECT_EQ(CountParameters(qwen25_1_5b).total, 1543714304);
  const ModelSpec qwen3_8b = {.vocab_size = 151936,
                              .hidden = 4096,
                              .num_layers = 36,
                              .num_heads = 32,
                              .num_kv_heads = 8,
                              .head_dim = 128,
                              .ffn_hidden = 12288,
                              .sequence_length = 8192,
                              .qk_norm = true};
  EXPECT_EQ(CountParameters(qwen3_8b).total, 8190735360);
  const ModelSpec gpt2 = {.vocab_size = 50257,
                          .hidden = 768,
                          .num_layers = 12,
                          .num_heads = 12,
                          .num_kv_heads = 12,
                          .head_dim = 64,
                          .ffn_hidden = 3072,
                          .sequence_length = 1024,
                          .learned_positions = 1024,
                          .norm = NormKind::kLayer,
                          .feed_forward = FeedForward::kGelu,
                          .ties_embedding = true,
                          .qkv_bias = true,
                          .linear_bias = true};
  EXPECT_EQ(CountParameters(gpt2).total, 124439808);
}

// Goal: only what a token meets costs FLOPs, and a tied head as much as its
// own. Method: one expert of width e chosen of many is a dense layer of width e
// beside its router; tying takes parameters away, not FLOPs.
TEST(CountTokenFlopsTest, CountsActiveParameters) {
  const ModelSpec dense = Llama7B();
  ModelSpec experts = dense;
  experts.moe = {.num_experts = 64,
                 .experts_per_token = 1,
                 .expert_hidden = dense.ffn_hidden};
  EXPECT_DOUBLE_EQ(CountTokenFlops(experts).linear,
                   CountTokenFlops(dense).linear + 6.0 * 32 * 64 * 4096);
  ModelSpec tied = dense;
  tied.ties_embedding = true;
  EXPECT_DOUBLE_EQ(CountTokenFlops(tied).linear, CountTokenFlops(dense).linear);
  EXPECT_EQ(CountParameters(tied).total,
            CountParameters(dense).total - CountParameters(dense).head);
  // Query and key 192 wide, values 128.
  EXPECT_DOUBLE_EQ(CountTokenFlops(DeepSeekV3()).attention_full,
                   6.0 * 61 * 128 * (192 + 128) * 4096);
}

// Goal: a window takes away the pairs outside it. Method: half of the sequence,
// outside which lies a quarter of the triangle; a window as long as it.
TEST(CountTokenFlopsTest, CountsPairsWithinTheWindow) {
  ModelSpec windowed = Llama7B();
  windowed.sliding_window = 2048;
  const TokenFlops flops = CountTokenFlops(windowed);
  EXPECT_DOUBLE_EQ(flops.attention_causal, flops.attention_full / 2 * 0.75);
  windowed.sliding_window = 4096;
  EXPECT_DOUBLE_EQ(CountTokenFlops(windowed).attention_causal,
                   CountTokenFlops(Llama7B()).attention_causal);
}

// Goal: a token meets those of its document alone. Method: documents of a
// quarter of a sequence; a window of half of that, and a longer one.
TEST(CountTokenFlopsTest, CountsPairsWithinDocuments) {
  ModelSpec model = Llama7B();
  const double full = CountTokenFlops(model).attention_full;
  EXPECT_DOUBLE_EQ(CountTokenFlops(model, 1024).attention_full, full);
  EXPECT_DOUBLE_EQ(CountTokenFlops(model, 1024).attention_causal, full / 8);
  model.sliding_window = 512;
  EXPECT_DOUBLE_EQ(CountTokenFlops(model, 1024).attention_causal,
                   full / 8 * 0.75);
  model.sliding_window = 2048;
  EXPECT_DOUBLE_EQ(CountTokenFlops(model, 1024).attention_causal, full / 8);
}

// Goal: layers without the window count whole. Method: every second of 32, and
// every sixth, of which there are five.
TEST(CountTokenFlopsTest, CountsLayersWithoutTheWindow) {
  ModelSpec model = Llama7B();
  model.sliding_window = 2048;
  model.global_layer_period = 2;
  const TokenFlops flops = CountTokenFlops(model);
  EXPECT_DOUBLE_EQ(flops.attention_causal, flops.attention_full / 2 * 0.875);
  model.global_layer_period = 6;
  EXPECT_DOUBLE_EQ(CountTokenFlops(model).attention_causal,
                   flops.attention_full / 2 * (5 + 27 * 0.75) / 32);
}

// Goal: FLOPs follow from the counts and the attention shape. Method: by hand.
TEST(CountTokenFlopsTest, CountsLinearAndAttention) {
  const TokenFlops flops = CountTokenFlops(Llama7B());
  EXPECT_DOUBLE_EQ(flops.linear, 6.0 * (6738415616.0 - 32000.0 * 4096.0));
  EXPECT_DOUBLE_EQ(flops.attention_full, 12.0 * 32 * 4096 * 4096);
  EXPECT_DOUBLE_EQ(flops.attention_causal, flops.attention_full / 2);
}

// Goal: each impossible field is refused by name. Method: break one at a time.
TEST(ValidateModelTest, NamesTheFirstImpossibleField) {
  EXPECT_TRUE(ValidateModel(Llama7B()).ok());
  ModelSpec model = Llama7B();
  model.hidden = 0;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("model.hidden"));
  model = Llama7B();
  model.num_kv_heads = 5;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("model.kv_heads"));
  model = Llama7B();
  model.head_dim = 127;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("head_dim"));
  model = Llama7B();
  model.rope_theta = -1;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("rope_theta"));
  model = DeepSeekV3();
  model.head_dim = 128;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("model.head_dim"));
  model = DeepSeekV3();
  model.num_kv_heads = 8;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("model.kv_heads"));
  model = DeepSeekV3();
  model.mla.value_head_dim = 0;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("mla.value_head_dim"));
  model = DeepSeekV3();
  model.moe.experts_per_token = 257;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("experts_per_token"));
  model = DeepSeekV3();
  model.moe.num_dense_layers = 61;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("num_dense_layers"));
  model = DeepSeekV3();
  model.ffn_hidden = 0;  // The first three layers are dense.
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("ffn_hidden"));
  model = DeepSeekV3();
  model.mla.rope_head_dim = 63;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("mla.rope_head_dim"));
  EXPECT_TRUE(ValidateModel(Qwen3_30B_A3B()).ok());
}

// Goal: a key forgotten does not make another kind of model. Method: keys of
// experts and of latent attention without the one that makes them so.
TEST(ValidateModelTest, RefusesHalfOfAPart) {
  ModelSpec model = DeepSeekV3();
  model.moe.num_experts = 0;
  EXPECT_THAT(ValidateModel(model).message(),
              HasSubstr("model.moe.num_experts is 0, but"));
  model = DeepSeekV3();
  model.mla.kv_rank = 0;
  EXPECT_THAT(ValidateModel(model).message(),
              HasSubstr("model.mla.kv_rank is 0, but"));
}

// Goal: no count of parameters overflows. Method: widths at the ends of their
// ranges, one kind after the other.
TEST(ValidateModelTest, RefusesWhatCannotBeCounted) {
  constexpr int64_t kWide = (int64_t{1} << 31) - 1;
  constexpr int64_t kMany = 1 << 20;
  for (const auto& widen : std::vector<std::function<void(ModelSpec*)>>{
           [](ModelSpec* m) { m->hidden = m->ffn_hidden = kWide; },
           [](ModelSpec* m) {
             m->num_heads = m->num_kv_heads = m->head_dim = kMany;
           },
           [](ModelSpec* m) {
             m->moe = {.num_experts = kMany,
                       .experts_per_token = 1,
                       .expert_hidden = kWide};
           },
           [](ModelSpec* m) {
             m->num_kv_heads = m->num_heads;
             m->head_dim = 4;
             m->mla = {.kv_rank = kWide,
                       .nope_head_dim = 2,
                       .rope_head_dim = 2,
                       .value_head_dim = kMany};
           }}) {
    ModelSpec model = Llama3_405B();
    widen(&model);
    EXPECT_THAT(ValidateModel(model).message(), HasSubstr("parameters"));
  }
}

}  // namespace
}  // namespace millrace
