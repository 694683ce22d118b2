#include "planner/evaluate/known_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_replace.h"
#include "tests/planner/shipped_rules.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kModels[] = R"(models:
  - name: Ours 2B
    source: its report
    dims:
      {vocab: 1000, hidden: 512, layers: 4, heads: 8, kv_heads: 2, ffn: 2048,
       mlp: swiglu}
experts:
  - {name: Grok-1, source: its release, experts: 8}
unplannable:
  - {names: [Ours-H], words: [Mamba], why: has other layers}
)";

std::string ErrorOfModels(const std::string& from, const std::string& to) {
  const std::string yaml = absl::StrReplaceAll(kModels, {{from, to}});
  EXPECT_NE(yaml, kModels) << from;
  return std::string(ParseKnownModels(yaml, "m.yaml").status().message());
}

// Goal: a model that a file describes is found by its name as rows spell it,
// and what the file does not say follows. Method: a small file.
TEST(KnownModelsTest, ReadsAFile) {
  const auto known = ParseKnownModels(kModels, "m.yaml");
  ASSERT_TRUE(known.ok()) << known.status();
  const KnownModel* model = FindKnownModel(*known, "OURS_2b-instruct");
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->model.num_kv_heads, 2);
  EXPECT_EQ(model->model.head_dim, 64);
  EXPECT_TRUE(model->model.is_llama());
  EXPECT_EQ(FindKnownModel(*known, "theirs-2b"), nullptr);
  EXPECT_EQ(FindKnownExperts(*known, "grok1")->num_experts, 8);
  EXPECT_EQ(UnplannableArchitecture(*known, "Big Mamba"),
            "Big Mamba has other layers");
  EXPECT_EQ(UnplannableArchitecture(*known, "ours-h 2"),
            "ours-h 2 has other layers");
  EXPECT_THAT(UnplannableArchitecture(*known, "ours-2b"), IsEmpty());
}

// Goal: a mistake in the file is named with its line and key. Method: one each.
TEST(KnownModelsTest, RefusesMistakes) {
  EXPECT_EQ(ErrorOfModels("hidden: 512, ", ""),
            "m.yaml:4: models[0].dims.hidden: missing; expected an integer "
            "from 1 to 2147483647");
  EXPECT_EQ(ErrorOfModels("layers: 4", "layers: four"),
            "m.yaml:5: models[0].dims.layers: expected an integer from 1 to "
            "2147483647, found 'four'");
  EXPECT_THAT(ErrorOfModels("kv_heads", "kv_haeds"),
              HasSubstr("did you mean 'kv_heads'?"));
  EXPECT_THAT(ErrorOfModels("swiglu", "maxout"),
              HasSubstr("expected swiglu, gelu or relu2, found 'maxout'"));
  EXPECT_THAT(ErrorOfModels("heads: 8", "heads: 7"),
              HasSubstr("head_dim: missing; hidden is not divisible by heads"));
  EXPECT_THAT(ErrorOfModels("kv_heads: 2", "kv_heads: 3"),
              HasSubstr("m.yaml:4: models[0].dims: "));
  EXPECT_THAT(ErrorOfModels("Ours 2B", "'-'"),
              HasSubstr("models[0].name: expected letters or digits"));
  EXPECT_THAT(ErrorOfModels("names: [Ours-H], words: [Mamba], ", ""),
              HasSubstr("unplannable[0]: expected names or words"));
  EXPECT_THAT(ParseKnownModels("[]", "m.yaml").status().message(),
              HasSubstr("expected a map"));
}

// Goal: the file that comes with Millrace describes the models that it is
// known for. Method: names as sources spell them.
TEST(KnownModelsTest, ShippedModelsAreFound) {
  for (const char* name :
       {"llama3-8b", "Llama 3.1 405B", "GPT OSS 120B", "Kimi_K2",
        "qwen3-235b-a22b", "Mixtral-8x22B", "moonlight-16b-a3b"}) {
    EXPECT_NE(FindKnownModel(ShippedRules().models, name), nullptr) << name;
  }
  EXPECT_EQ(FindKnownModel(ShippedRules().models, "Moonlight 16B")
                ->model.mla.query_rank,
            0);
}

}  // namespace
}  // namespace millrace
