// Models of Hugging Face, by their config.json.

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/frameworks/import.h"
#include "planner/frameworks/settings.h"
#include "tests/planner/frameworks/framework_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<ImportedJob> ImportHuggingFaceText(
    const std::string& text, const ImportOptions& options = {}) {
  const absl::StatusOr<Settings> settings =
      ReadJsonSettings(text, "config.json");
  if (!settings.ok()) return settings.status();
  return ImportJob(HuggingFaceAdapter(), *settings, options);
}

std::string HuggingFaceErrorOf(const std::string& text) {
  const absl::StatusOr<ImportedJob> imported = ImportHuggingFaceText(text);
  if (imported.ok()) return "no error";
  EXPECT_EQ(imported.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(imported.status().message());
}

// Goal: a model's numbers are taken, and what was assumed is said. Method: the
// config of a known model, by hand.
TEST(ImportHuggingFaceTest, TakesModels) {
  const absl::StatusOr<ImportedJob> imported =
      ImportHuggingFaceText(kHuggingFaceConfig);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->job.model, (ModelSpec{.vocab_size = 32000,
                                            .hidden = 4096,
                                            .num_layers = 32,
                                            .num_heads = 32,
                                            .num_kv_heads = 8,
                                            .head_dim = 128,
                                            .ffn_hidden = 11008,
                                            .sequence_length = 2048,
                                            .rope_theta = 10000,
                                            .norm_epsilon = 1e-6,
                                            .init_std = 0.02}));
  EXPECT_THAT(imported->remarks.at("training.steps"), HasSubstr("assumed"));
  EXPECT_EQ(imported->remarks.at("model.ffn_hidden"), "intermediate_size");
  EXPECT_THAT(imported->notes, testing::Contains(HasSubstr("use_cache")));
  // Newer files nest the base of the rotary positions.
  const absl::StatusOr<ImportedJob> nested = ImportHuggingFaceText(
      Changed(kHuggingFaceConfig, "\"rope_scaling\": null",
              "\"rope_parameters\": {\"rope_type\": \"default\",\n\t"
              "\"rope_theta\": 500000.0}"));
  ASSERT_TRUE(nested.ok()) << nested.status();
  EXPECT_EQ(nested->job.model.rope_theta, 500000);
}

// Goal: models that ours cannot be are refused by file, line and key. Method:
// one change each.
TEST(ImportHuggingFaceTest, RefusesForeignModels) {
  const struct {
    const char* from;
    const char* to;
    const char* error;
  } cases[] = {
      {"\"llama\"", "\"bloom\"", "config.json:3: model_type: found 'bloom'"},
      {"\"llama\"", "\"gemma\"", "config.json:3: model_type: found 'gemma'"},
      {"LlamaForCausalLM", "MixtralForCausalLM",
       "config.json:2: architectures: found 'MixtralForCausalLM'"},
      {"\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"yarn\"}",
       "config.json:12: rope_scaling.rope_type: found 'yarn'"},
      {"\"rope_scaling\": null",
       "\"rope_scaling\": {\"rope_type\": \"llama3\"}",
       "config.json: rope_scaling.factor: missing, though "
       "rope_scaling.rope_type on line 12 is llama3"},
      {"\"rope_scaling\": null", "\"attention_bias\": true",
       "config.json:12: attention_bias: found 'true'"},
      {"\"silu\"", "\"gelu\"", "config.json:13: hidden_act: found 'gelu'"},
      {"\"hidden_size\": 4096", "\"hidden_size\": \"big\"",
       "config.json:5: hidden_size: expected an integer of at least 1, found "
       "'big'"},
      {"\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7",
       "config.json:8: num_key_value_heads: 7 does not divide "
       "num_attention_heads 32"},
      {"\"hidden_size\": 4096", "\"hidden_size\": 4097",
       "config.json:5: hidden_size: 4097 is not divisible by "
       "num_attention_heads 32"},
      {"  \"intermediate_size\": 11008,\n", "",
       "config.json: intermediate_size: missing"},
      {"intermediate_size", "intermediate_sizes",
       "is 'intermediate_sizes' on line 9 meant?"},
      {"\"hidden_size\": 4096,", "\"hidden_size\": 4096",
       "config.json:6: not valid JSON"},
      {"\"use_cache\": true", "\"vocab_size\": 5",
       "config.json:16: vocab_size: given twice, first on line 4"},
  };
  for (const auto& [from, to, error] : cases) {
    EXPECT_THAT(HuggingFaceErrorOf(Changed(kHuggingFaceConfig, from, to)),
                HasSubstr(error));
  }
  std::string many = "{\"a\": 1";
  for (int i = 0; i < 20'000; ++i) {
    absl::StrAppend(&many, ",\n\"a", i, "\": 1");
  }
  EXPECT_THAT(HuggingFaceErrorOf(absl::StrCat(many, "}")),
              HasSubstr("config.json:20001: more than 20000 settings"));
  const std::string deep(100'000, '[');
  EXPECT_THAT(HuggingFaceErrorOf(absl::StrCat("{\n\"a\": ", deep)),
              HasSubstr("config.json:2: lists and objects are nested deeper"));
}

}  // namespace
}  // namespace millrace
