#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/frameworks/job_importer.h"

namespace millrace {
namespace {

const FrameworkKey kHuggingFaceKeys[] = {
    {"model.vocab_size", "vocab_size"},
    {"model.hidden", "hidden_size"},
    {"model.layers", "num_hidden_layers"},
    {"model.heads", "num_attention_heads"},
    {"model.kv_heads", "num_key_value_heads"},
    {"model.head_dim", "head_dim"},
    {"model.ffn_hidden", "intermediate_size"},
    {"model.sequence_length", "max_position_embeddings"},
    {"model.norm_epsilon", "rms_norm_eps", "1e-06"},
    {"model.init_std", "initializer_range", "0.02"},
};

// A family of models that a ModelSpec can describe.
struct Family {
  const char* type;          // model_type.
  const char* architecture;  // The class that trains it.
  FeedForward feed_forward;
  // The parts that it has and ModelSpec lacks, or kNoApproximation.
  const char* approximation;
};

constexpr char kNoApproximation[] = "";
constexpr char kQueryKeyNorms[] =
    "ours has no norms of queries and keys, a small share of the work";
constexpr char kQueryKeyValueBiases[] =
    "ours has no biases of query, key and value, hardly any work";
constexpr char kLayerNorms[] =
    "planned as a model with RMSNorm, rotary positions and no biases, which "
    "has nearly the same work";

constexpr std::array<Family, 11> kFamilies = {{
    {"llama", "LlamaForCausalLM", FeedForward::kSwiglu, kNoApproximation},
    {"mistral", "MistralForCausalLM", FeedForward::kSwiglu, kNoApproximation},
    {"phi3", "Phi3ForCausalLM", FeedForward::kSwiglu, kNoApproximation},
    {"qwen2", "Qwen2ForCausalLM", FeedForward::kSwiglu, kQueryKeyValueBiases},
    {"qwen3", "Qwen3ForCausalLM", FeedForward::kSwiglu, kQueryKeyNorms},
    {"mixtral", "MixtralForCausalLM", FeedForward::kSwiglu, kNoApproximation},
    {"qwen3_moe", "Qwen3MoeForCausalLM", FeedForward::kSwiglu, kQueryKeyNorms},
    {"deepseek_v2", "DeepseekV2ForCausalLM", FeedForward::kSwiglu,
     kNoApproximation},
    {"deepseek_v3", "DeepseekV3ForCausalLM", FeedForward::kSwiglu,
     kNoApproximation},
    {"nemotron", "NemotronForCausalLM", FeedForward::kSquaredRelu, kLayerNorms},
    {"gpt2", "GPT2LMHeadModel", FeedForward::kGelu, kLayerNorms},
}};

// Returns the family, or null after an error.
const Family* TakeFamily(Importer& importer) {
  const Setting* type = importer.Look("model_type");
  std::vector<std::string> types;
  for (const Family& family : kFamilies) {
    types.push_back(family.type);
    if (type == nullptr || type->value != family.type) continue;
    importer.RefuseUnless("architectures", {"", family.architecture},
                          absl::StrCat("model_type ", family.type,
                                       " is trained as ", family.architecture));
    return &family;
  }
  importer.RefuseUnless(
      "model_type", types,
      absl::StrCat("only ", absl::StrJoin(types, ", "), " can be ours"));
  return nullptr;
}

void CheckRotary(const Family& family, Importer& importer) {
  for (const char* key : {"rope_scaling.rope_type", "rope_scaling.type",
                          "rope_parameters.rope_type", "partial_rotary_factor",
                          "rope_parameters.partial_rotary_factor"}) {
    const Setting* setting = importer.Look(key);
    if (setting == nullptr || setting->value == "default" ||
        setting->value == "1" || setting->value == "1.0") {
      continue;
    }
    importer.Approximate(*setting, "ours has plain rotary positions");
  }
  // Newer files keep the base among the other rotary parameters.
  const Setting* base = importer.Look("rope_theta");
  const Setting* nested = importer.Look("rope_parameters.rope_theta");
  if (base != nullptr && nested != nullptr && base->value != nested->value) {
    importer.Error(
        nested, "rope_parameters.rope_theta",
        absl::StrCat("found '", nested->value, "', but rope_theta on line ",
                     base->line, " is '", base->value, "'; remove one"));
  }
  const Setting* theta = nested != nullptr ? nested : base;
  const bool is_mixtral = absl::string_view(family.type) == "mixtral";
  const char* usual = is_mixtral ? "1000000" : "10000";
  importer.Set(
      "model.rope_theta", theta == nullptr ? usual : theta->value,
      theta == nullptr ? "default of Hugging Face Transformers" : theta->key,
      theta);
}

void CheckWindow(Importer& importer) {
  const Setting* window = importer.Look("sliding_window");
  const Setting* used = importer.Look("use_sliding_window");
  if (window == nullptr) return;
  if (used != nullptr && used->value == "false") return;
  const int64_t size = importer.Integer("sliding_window", 1, 1);
  const int64_t length = importer.job().model.sequence_length;
  if (size >= length) return;
  importer.Error(window, "sliding_window",
                 absl::StrCat("attention over the last ", size,
                              " tokens only, but sequences have ", length,
                              "; ours attends to all: give --sequence-length ",
                              size, " or less"));
}

// Takes a key of the file. If it is absent, takes the fallback; without a
// fallback adds an error.
void Take(Importer& importer, const char* job_path, const char* key,
          const char* fallback = nullptr) {
  const Setting* setting = importer.Look(key);
  if (setting != nullptr) {
    importer.Set(job_path, setting->value, key, setting);
  } else if (fallback != nullptr) {
    importer.Set(job_path, fallback, "default of Hugging Face Transformers");
  } else {
    importer.Error(nullptr, key, "missing; expected a whole number");
  }
}

// Adds an error unless the key is absent or has its usual value.
void DemandUsual(Importer& importer, const char* key, const char* usual,
                 const char* why) {
  importer.RefuseUnless(key, {"", usual}, why);
}

void TakeMixtral(Importer& importer) {
  Take(importer, "model.moe.num_experts", "num_local_experts");
  Take(importer, "model.moe.experts_per_token", "num_experts_per_tok");
  Take(importer, "model.moe.expert_hidden", "intermediate_size");
  Take(importer, "model.norm_epsilon", "rms_norm_eps", "1e-05");
}

void TakeQwen(Importer& importer) {
  Take(importer, "model.moe.num_experts", "num_experts");
  Take(importer, "model.moe.experts_per_token", "num_experts_per_tok");
  Take(importer, "model.moe.expert_hidden", "moe_intermediate_size");
  const char* all = "ours has experts in all layers but the first ones";
  DemandUsual(importer, "decoder_sparse_step", "1", all);
  DemandUsual(importer, "mlp_only_layers", "", all);
}

void TakeDeepSeek(Importer& importer) {
  Take(importer, "model.moe.num_experts", "n_routed_experts");
  Take(importer, "model.moe.experts_per_token", "num_experts_per_tok");
  Take(importer, "model.moe.expert_hidden", "moe_intermediate_size");
  Take(importer, "model.moe.num_shared_experts", "n_shared_experts");
  Take(importer, "model.moe.num_dense_layers", "first_k_dense_replace");
  DemandUsual(importer, "moe_layer_freq", "1",
              "ours has experts in all layers but the first ones");
  Take(importer, "model.mla.kv_rank", "kv_lora_rank");
  const Setting* query_rank = importer.Look("q_lora_rank");
  importer.Set("model.mla.query_rank",
               query_rank == nullptr ? "0" : query_rank->value,
               query_rank == nullptr ? "null or absent: queries are whole"
                                     : "q_lora_rank",
               query_rank);
  Take(importer, "model.mla.nope_head_dim", "qk_nope_head_dim");
  Take(importer, "model.mla.rope_head_dim", "qk_rope_head_dim");
  Take(importer, "model.mla.value_head_dim", "v_head_dim");
  const LatentAttention& mla = importer.job().model.mla;
  importer.Set("model.head_dim",
               absl::StrCat(mla.nope_head_dim + mla.rope_head_dim),
               "qk_nope_head_dim + qk_rope_head_dim");
  // Every head has its own key and value, whatever this key says.
  importer.Ignore({"num_key_value_heads"});
  Take(importer, "model.kv_heads", "num_attention_heads");
  importer.NoteIfThere({"num_nextn_predict_layers"},
                       "the layers that predict further tokens are left out");
}

// GPT-2 has other names for its keys.
void TakeGpt2(const ImportOptions& options, Importer& importer) {
  Take(importer, "model.hidden", "n_embd");
  Take(importer, "model.layers", "n_layer");
  Take(importer, "model.heads", "n_head");
  Take(importer, "model.kv_heads", "n_head");
  Take(importer, "model.ffn_hidden", "n_inner",
       absl::StrCat(4 * importer.job().model.hidden).c_str());
  if (!options.sequence_length.has_value()) {
    Take(importer, "model.sequence_length", "n_positions", "1024");
  }
  Take(importer, "model.norm_epsilon", "layer_norm_epsilon", "1e-05");
}

void TakeModel(const Family& family, const ImportOptions& options,
               Importer& importer) {
  const absl::string_view type = family.type;
  importer.Set("model.feed_forward", FeedForwardName(family.feed_forward),
               "model_type");
  if (type == "mixtral") TakeMixtral(importer);
  if (type == "qwen3_moe") TakeQwen(importer);
  if (absl::StartsWith(type, "deepseek")) TakeDeepSeek(importer);
  if (type == "gpt2") TakeGpt2(options, importer);
  if (type == "nemotron") {
    Take(importer, "model.norm_epsilon", "norm_eps", "1e-05");
  }
  importer.TakeTable();
  // Defaults differ between families.
  if (type == "mistral" || type == "mixtral" ||
      absl::StartsWith(type, "qwen")) {
    importer.Require("model.kv_heads");
  }
  const Setting* tied = importer.Look("tie_word_embeddings");
  const bool usual = type == "gpt2";
  const bool is_tied = tied == nullptr ? usual : tied->value == "true";
  importer.Set("model.ties_embedding", is_tied ? "true" : "false",
               tied == nullptr ? "default of Hugging Face Transformers"
                               : "tie_word_embeddings",
               tied);
  if (absl::string_view(family.approximation) != kNoApproximation) {
    importer.Approximate(*importer.Look("model_type"), family.approximation);
  }
}

void CheckActivation(const Family& family, Importer& importer) {
  switch (family.feed_forward) {
    case FeedForward::kSwiglu:
      importer.RefuseUnless("hidden_act", {"", "silu"},
                            "ours has SwiGLU, whose activation is silu");
      break;
    case FeedForward::kSquaredRelu:
      importer.RefuseUnless("hidden_act", {"", "relu2"},
                            "this family has the square of ReLU");
      break;
    case FeedForward::kGelu:
      importer.RefuseUnless(
          "activation_function",
          {"", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"},
          "this family has GELU");
      break;
  }
}

void CheckBiases(Importer& importer) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (importer.IsOn(key)) {
      importer.Approximate(*importer.Look(key), "ours has no biases");
    }
  }
}

void ImportHuggingFace(const ImportOptions& options, Importer& importer) {
  const Family* family = TakeFamily(importer);
  // The remaining keys may mean something else for this model.
  if (family == nullptr || importer.has_errors()) {
    importer.LeaveModel();
    return;
  }
  if (options.sequence_length.has_value()) {
    importer.Set("model.sequence_length",
                 absl::StrCat(*options.sequence_length), "--sequence-length");
    importer.Ignore({"max_position_embeddings"});
  }
  TakeModel(*family, options, importer);
  CheckRotary(*family, importer);
  CheckWindow(importer);
  CheckActivation(*family, importer);
  CheckBiases(importer);
  if (const Setting* dropout = importer.Look("attention_dropout");
      dropout != nullptr && dropout->value != "0" && dropout->value != "0.0") {
    importer.Note("attention_dropout " + dropout->value + ": ours has none");
  }
  for (const char* key : {"torch_dtype", "dtype"}) {
    const Setting* type = importer.Look(key);
    if (type == nullptr) continue;
    importer.SetPrecision(type->value == "bfloat16"  ? "bf16"
                          : type->value == "float16" ? "fp16"
                                                     : "fp32",
                          key, type);
  }
  importer.NoteIfThere({"quantization_config.quant_method"},
                       "weights are trained unquantized");
  if (importer.job().model.is_llama()) return;
  importer.Note(
      "the model can be planned and exported; workers cannot train it yet");
  if (importer.job().training.precision == "fp32") {
    importer.SetPrecision(
        "bf16", "assumed: such models are planned in bf16, fp8 or fp4",
        nullptr);
  }
}

constexpr FrameworkAdapter kHuggingFace = {
    .name = "huggingface",
    .title = "Hugging Face Transformers",
    .version = "config.json of 4.x and 5.x",
    .configuration = "a model's config.json",
    .keys = kHuggingFaceKeys,
    .read = ReadJsonSettings,
    .take = ImportHuggingFace,
    .why_no_export =
        "a Hugging Face config.json describes a model and has no layout",
};

}  // namespace

Framework HuggingFaceAdapter() { return &kHuggingFace; }

}  // namespace millrace
