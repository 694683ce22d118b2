#include "planner/known_models.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

ModelSpec Llama2(int64_t layers, int64_t hidden, int64_t heads,
                 int64_t kv_heads, int64_t ffn) {
  ModelSpec model;
  model.vocab_size = 32000;
  model.hidden = hidden;
  model.num_layers = layers;
  model.num_heads = heads;
  model.num_kv_heads = kv_heads;
  model.head_dim = hidden / heads;
  model.ffn_hidden = ffn;
  return model;
}

ModelSpec Nemotron3(int64_t layers, int64_t hidden) {
  ModelSpec model =
      Llama2(layers, hidden, hidden / 128, hidden / 128, 4 * hidden);
  model.vocab_size = 256000;
  model.feed_forward = FeedForward::kSquaredRelu;
  return model;
}

ModelSpec Gpt3Of20Billion() {
  ModelSpec model = Llama2(44, 6144, 48, 48, 24576);
  model.vocab_size = 51200;
  model.feed_forward = FeedForward::kGelu;
  model.ties_embedding = true;
  return model;
}

ModelSpec GptOss120Billion() {
  ModelSpec model = Llama2(36, 2880, 64, 8, 2880);
  model.vocab_size = 201088;
  model.head_dim = 64;
  model.moe = {
      .num_experts = 128, .experts_per_token = 4, .expert_hidden = 2880};
  return model;
}

// DeepSeek-V3's block.
ModelSpec LatentExperts(ModelSpec model, int64_t query_rank,
                        MixtureOfExperts moe) {
  model.vocab_size = 163840;
  model.mla = {.kv_rank = 512,
               .query_rank = query_rank,
               .nope_head_dim = 128,
               .rope_head_dim = 64,
               .value_head_dim = 128};
  model.head_dim = 192;
  model.moe = moe;
  return model;
}

const std::vector<KnownModel>& KnownModels() {
  static const auto* const models = new std::vector<KnownModel>{
      {"llama27b", "config.json of Llama 2 7B", Llama2(32, 4096, 32, 32, 11008),
       ""},
      {"llama270b", "config.json of Llama 2 70B",
       Llama2(80, 8192, 64, 8, 28672), ""},
      {"gpt320b", "NeMo's GPT-3 20B recipe", Gpt3Of20Billion(), ""},
      {"nemotron8b", "NeMo's Nemotron-3 8B recipe", Nemotron3(32, 4096), ""},
      {"nemotron22b", "NeMo's Nemotron-3 22B recipe", Nemotron3(40, 6144), ""},
      {"gptoss120b", "config.json of gpt-oss-120b", GptOss120Billion(),
       "every layer's attention as if it saw all tokens: half of them see 128"},
      {"kimik2", "config.json of Kimi K2",
       LatentExperts(Llama2(61, 7168, 64, 64, 18432), 1536,
                     {.num_experts = 384,
                      .experts_per_token = 8,
                      .expert_hidden = 2048,
                      .num_shared_experts = 1,
                      .num_dense_layers = 1}),
       ""},
      {"moonlight16b", "config.json of Moonlight-16B-A3B",
       LatentExperts(Llama2(27, 2048, 16, 16, 11264), 0,
                     {.num_experts = 64,
                      .experts_per_token = 6,
                      .expert_hidden = 1408,
                      .num_shared_experts = 2,
                      .num_dense_layers = 1}),
       ""},
  };
  return *models;
}

}  // namespace

std::string PlainModelName(absl::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      plain.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
    }
  }
  return plain;
}

const KnownModel* FindKnownModel(absl::string_view name) {
  const std::string plain = PlainModelName(name);
  for (const KnownModel& known : KnownModels()) {
    if (absl::StartsWith(plain, known.prefix)) return &known;
  }
  return nullptr;
}

std::string UnplannableArchitecture(absl::string_view name) {
  const std::string plain = PlainModelName(name);
  if (absl::StrContains(plain, "mamba") ||
      absl::StartsWith(plain, "nemotron3nano") ||
      absl::StartsWith(plain, "nemotron3super") ||
      absl::StartsWith(plain, "nemotron3ultra") ||
      absl::StartsWith(plain, "nemotron35") ||
      absl::StartsWith(plain, "nemotronh")) {
    return absl::StrCat(name,
                        " mixes Mamba layers with attention; the planner has "
                        "no arithmetic for them");
  }
  if (absl::StartsWith(plain, "qwen3next")) {
    return absl::StrCat(name,
                        " has linear-attention layers; the planner has no "
                        "arithmetic for them");
  }
  if (absl::StartsWith(plain, "deepseekv4")) {
    return absl::StrCat(name,
                        " has sparse attention; the planner has no arithmetic "
                        "for it");
  }
  return "";
}

}  // namespace millrace
