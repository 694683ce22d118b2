#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/planner/frameworks/model_folder_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Goal: Gemma 2 and 3 are taken whole; which layers have the window follows
// from layer_types, a pattern or the family, and any other order is refused.
// Method: their config.json, in the spellings of Transformers 4 and 5.
TEST(ModelFolderFamiliesTest, TakesGemma) {
  const ModelSpec gemma2 = ModelOf(kGemma2);
  EXPECT_TRUE(gemma2.norm_adds_one && gemma2.output_norms &&
              gemma2.scales_embedding && gemma2.ties_embedding);
  EXPECT_EQ(gemma2.feed_forward, FeedForward::kGeglu);
  EXPECT_EQ(gemma2.sliding_window, 4096);
  EXPECT_EQ(gemma2.global_layer_period, 2);
  EXPECT_EQ(gemma2.attention_softcap, 50);
  EXPECT_EQ(gemma2.logit_softcap, 30);
  EXPECT_EQ(gemma2.query_pre_attn_scalar, 256);
  EXPECT_EQ(CountParameters(gemma2).total, 9'241'705'984);
  // With a window as long as the sequences, layers are alike.
  EXPECT_EQ(ModelOf(kGemma2, 4096).global_layer_period, 0);
  EXPECT_EQ(ModelOf(kGemma2, 4096).sliding_window, 0);

  const ModelSpec gemma3 = ModelOf(kGemma3);
  EXPECT_TRUE(gemma3.qk_norm);
  EXPECT_EQ(gemma3.sliding_window, 512);
  EXPECT_EQ(gemma3.global_layer_period, 6);
  EXPECT_EQ(gemma3.rope_theta, 1000000);
  EXPECT_EQ(gemma3.sliding_rope_theta, 10000);
  EXPECT_EQ(gemma3.attention_softcap, 0);
  EXPECT_EQ(gemma3.rope_scaling,
            (RopeScaling{.kind = RopeScalingKind::kLinear, .factor = 8}));
  EXPECT_EQ(CountParameters(gemma3).total, 999'885'952);
  // Their rotary base differs even where the window changes nothing.
  EXPECT_EQ(ModelOf(kGemma3, 512).global_layer_period, 6);
  const std::string of_5 = absl::StrReplaceAll(
      kGemma3,
      {{"\"rope_local_base_freq\": 10000,",
        "\"rope_parameters\": {\"full_attention\": {\"rope_type\": "
        "\"linear\", \"factor\": 8.0, \"rope_theta\": 1000000}, "
        "\"sliding_attention\": {\"rope_type\": \"default\", "
        "\"rope_theta\": 10000}},"},
       {"\"rope_theta\": 1000000,", ""},
       {"\"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"},", ""},
       {"\"sliding_window_pattern\": 6,", ""}});
  EXPECT_EQ(ModelOf(of_5), gemma3);

  const auto with_types = [](const std::string& types) {
    return absl::StrReplaceAll(
        kGemma3, {{"\"num_hidden_layers\": 26", "\"num_hidden_layers\": 4"},
                  {"\"sliding_window_pattern\": 6",
                   absl::StrCat("\"layer_types\": [", types, "]")}});
  };
  const std::string window = "\"sliding_attention\"";
  const std::string full = "\"full_attention\"";
  const ModelSpec second = ModelOf(
      with_types(absl::StrCat(window, ", ", full, ", ", window, ", ", full)));
  EXPECT_EQ(second.global_layer_period, 2);
  EXPECT_EQ(second.num_global_layers(), 2);
  const ModelSpec none = ModelOf(with_types(
      absl::StrCat(window, ", ", window, ", ", window, ", ", window)));
  EXPECT_EQ(none.num_global_layers(), 0);
  EXPECT_EQ(none.sliding_rope_theta, 10000);
  const ModelSpec all = ModelOf(
      with_types(absl::StrCat(full, ", ", full, ", ", full, ", ", full)));
  EXPECT_EQ(all.sliding_window, 0);
  EXPECT_EQ(all.sliding_rope_theta, 0);
  EXPECT_THAT(ErrorWith(with_types(
                  absl::StrCat(window, ", ", full, ", ", full, ", ", window))),
              HasSubstr("or sliding_attention with full_attention in every"));
  EXPECT_THAT(ErrorWith(With(kGemma2, "gelu_pytorch_tanh\",", "gelu\",")),
              HasSubstr("hidden_activation: found 'gelu'"));
  EXPECT_THAT(ErrorWith(With(kGemma3, "\"gemma3_text\"", "\"gemma3\"")),
              HasSubstr("model_type: found 'gemma3'"));
}

// Goal: Phi-4-mini's share of a head and its factors are taken; which list of
// these, and what attention is multiplied by, follow from lengths. Method: a
// small config.json, at two lengths; then one slip each.
TEST(ModelFolderFamiliesTest, TakesPartialRotaryPositions) {
  const ModelSpec shorter = ModelOf(kPhi4Mini, 4096);
  EXPECT_EQ(shorter.rotary_dim, 6);
  EXPECT_EQ(shorter.rope_scaling.kind, RopeScalingKind::kLongrope);
  EXPECT_EQ(shorter.rope_factors, (std::vector<double>{1, 1.5, 2}));
  EXPECT_NEAR(shorter.rope_scaling.attention_factor, 1.190238, 1e-6);
  const ModelSpec longer = ModelOf(kPhi4Mini, 4097);
  EXPECT_EQ(longer.rope_factors, (std::vector<double>{1, 4.25, 60}));
  EXPECT_EQ(longer.rope_scaling, shorter.rope_scaling);
  // Newer files have the first length in two places.
  const auto with_both = [](const char* nested) {
    return With(kPhi4Mini, "\"long_factor\"",
                absl::StrCat("\"original_max_position_embeddings\": ", nested,
                             ", \"long_factor\""));
  };
  EXPECT_EQ(ModelOf(with_both("4096"), 4097).rope_factors, longer.rope_factors);
  EXPECT_THAT(ErrorWith(with_both("2048")),
              HasSubstr("found '2048', but original_max_position_embeddings"));
  EXPECT_THAT(ErrorWith(With(kPhi4Mini, "0.75", "1.75")),
              HasSubstr("partial_rotary_factor: found '1.75'"));
  EXPECT_THAT(ErrorWith(With(kPhi4Mini, "[1.0, 4.25, 60.0]", "[1.0, 4.25]")),
              HasSubstr("has 2 numbers; longrope needs 3"));
  EXPECT_THAT(ErrorWith(With(kPhi4Mini, "\"long_factor\"", "\"longest\"")),
              HasSubstr("long_factor is missing"));
}

}  // namespace
}  // namespace millrace
