#include "planner/evaluate/known_models.h"

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

ModelSpec Llama3(int64_t layers, int64_t hidden, int64_t heads, int64_t ffn) {
  ModelSpec model = Llama2(layers, hidden, heads, 8, ffn);
  model.vocab_size = 128256;
  return model;
}

ModelSpec Gpt3(int64_t layers, int64_t hidden, int64_t heads) {
  ModelSpec model = Llama2(layers, hidden, heads, heads, 4 * hidden);
  model.vocab_size = 51200;
  model.feed_forward = FeedForward::kGelu;
  model.ties_embedding = true;
  return model;
}

ModelSpec GptOss(int64_t layers, int64_t experts) {
  ModelSpec model = Llama2(layers, 2880, 64, 8, 2880);
  model.vocab_size = 201088;
  model.head_dim = 64;
  model.moe = {
      .num_experts = experts, .experts_per_token = 4, .expert_hidden = 2880};
  return model;
}

ModelSpec Mixtral(ModelSpec model) {
  model.moe = {.num_experts = 8,
               .experts_per_token = 2,
               .expert_hidden = model.ffn_hidden};
  return model;
}

ModelSpec Mixtral8x22Billion() {
  ModelSpec model = Mixtral(Llama2(56, 6144, 48, 8, 16384));
  model.vocab_size = 32768;
  return model;
}

// Of 128 experts.
ModelSpec Qwen3(int64_t layers, int64_t hidden, int64_t heads, int64_t width) {
  ModelSpec model = Llama2(layers, hidden, heads, 4, width);
  model.vocab_size = 151936;
  model.head_dim = 128;
  model.moe = {
      .num_experts = 128, .experts_per_token = 8, .expert_hidden = width};
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
      {"llama213b", "config.json of Llama 2 13B",
       Llama2(40, 5120, 40, 40, 13824), ""},
      {"llama270b", "config.json of Llama 2 70B",
       Llama2(80, 8192, 64, 8, 28672), ""},
      {"llama38b", "config.json of Llama 3 8B", Llama3(32, 4096, 32, 14336),
       ""},
      {"llama318b", "config.json of Llama 3.1 8B", Llama3(32, 4096, 32, 14336),
       ""},
      {"llama370b", "config.json of Llama 3 70B", Llama3(80, 8192, 64, 28672),
       ""},
      {"llama3170b", "config.json of Llama 3.1 70B",
       Llama3(80, 8192, 64, 28672), ""},
      {"llama31405b", "config.json of Llama 3.1 405B",
       Llama3(126, 16384, 128, 53248), ""},
      {"gpt35b", "NeMo's GPT-3 5B recipe", Gpt3(24, 4096, 32), ""},
      {"gpt320b", "NeMo's GPT-3 20B recipe", Gpt3(44, 6144, 48), ""},
      {"mixtral8x7b", "config.json of Mixtral 8x7B",
       Mixtral(Llama2(32, 4096, 32, 8, 14336)), ""},
      {"mixtral8x22b", "config.json of Mixtral 8x22B", Mixtral8x22Billion(),
       ""},
      {"qwen330b", "config.json of Qwen3 30B-A3B", Qwen3(48, 2048, 32, 768),
       ""},
      {"qwen3235b", "config.json of Qwen3 235B-A22B", Qwen3(94, 4096, 64, 1536),
       ""},
      {"nemotron8b", "NeMo's Nemotron-3 8B recipe", Nemotron3(32, 4096), ""},
      {"nemotron22b", "NeMo's Nemotron-3 22B recipe", Nemotron3(40, 6144), ""},
      {"gptoss20b", "config.json of gpt-oss-20b", GptOss(24, 32),
       "every layer's attention as if it saw all tokens: half of them see 128"},
      {"gptoss120b", "config.json of gpt-oss-120b", GptOss(36, 128),
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
