#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "planner/frameworks/huggingface_families.h"
#include "planner/frameworks/job_importer.h"

namespace millrace {
namespace {

constexpr char kDefault[] = "default of Hugging Face Transformers";

// For every family, where weights are trained.
constexpr UsualValue kExactUsual[] = {
    {"use_mrope", "false", "ours counts positions along one axis"},
    {"add_cross_attention", "false", "ours attends to its own tokens only"},
    {"is_encoder_decoder", "false", "ours is a decoder"},
    {"quantization_config.quant_method", "",
     "quantized weights cannot be read; name the folder of the model before it "
     "was quantized"},
};

// Keys that say nothing of what a model computes from its tokens.
constexpr const char* kHarmlessKeys[] = {
    "_attn_implementation_autoset",
    "_name_or_path",
    "attn_implementation",
    "bos_token_id",
    "chunk_size_feed_forward",
    "eos_token_id",
    "finetuning_task",
    "initializer_range",
    "is_decoder",
    "n_ctx",
    "num_key_value_heads",
    "original_max_position_embeddings",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "reorder_and_upcast_attn",
    "return_dict",
    "router_aux_loss_coef",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tokenizer_class",
    "torchscript",
    "transformers_version",
    "use_cache",
};

// Returns the family, or null after an error.
const Family* TakeFamily(Importer& importer) {
  const Setting* type = importer.Look("model_type");
  std::vector<std::string> types;
  for (const Family& family : HuggingFaceFamilies()) {
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

// Takes a key of the file. If it is absent, takes the fallback; without a
// fallback adds an error.
void Take(Importer& importer, const char* job_path, const std::string& key,
          const char* fallback = nullptr) {
  const Setting* setting = importer.Look(key);
  if (setting != nullptr) {
    importer.Set(job_path, setting->value, key, setting);
  } else if (fallback != nullptr) {
    importer.Set(job_path, fallback, kDefault);
  } else {
    importer.Missing(job_path, key, "missing; expected a whole number");
  }
}

// The two places of rotary settings: of Transformers 4 and of 5.
constexpr const char* kRopeSections[] = {"rope_scaling", "rope_parameters"};

// The setting of that name in either section. Null if there is none; an error
// if they differ.
const Setting* LookAtRope(Importer& importer, absl::string_view name) {
  const Setting* first = nullptr;
  for (const char* section : kRopeSections) {
    const Setting* setting = importer.Look(absl::StrCat(section, ".", name));
    if (setting == nullptr) continue;
    if (first != nullptr && first->value != setting->value) {
      importer.Error(setting, setting->key,
                     absl::StrCat("found '", setting->value, "', but ",
                                  first->key, " on line ", first->line, " is '",
                                  first->value, "'; remove one"));
    }
    if (first == nullptr) first = setting;
  }
  return first;
}

// Ours call them as Transformers does.
constexpr const char* kLlama3Numbers[] = {"factor", "low_freq_factor",
                                          "high_freq_factor",
                                          "original_max_position_embeddings"};

// Takes the frequencies as Llama 3.1 scales them.
void TakeLlama3Scaling(const Setting& type, Importer& importer) {
  importer.Set("model.rope_scaling.kind", "llama3", type.key, &type);
  for (const char* name : kLlama3Numbers) {
    const std::string job_path = absl::StrCat("model.rope_scaling.", name);
    if (const Setting* setting = LookAtRope(importer, name);
        setting != nullptr) {
      importer.Set(job_path, setting->value, setting->key, setting);
      continue;
    }
    importer.Missing(
        job_path,
        absl::StrCat(type.key.substr(0, type.key.find('.')), ".", name),
        absl::StrCat("missing, though ", type.key, " on line ", type.line,
                     " is llama3; expected a number"));
  }
}

void CheckRotary(const Family& family, Importer& importer) {
  bool is_scaled = false;
  for (const char* name : {"rope_type", "type"}) {
    const Setting* type = LookAtRope(importer, name);
    if (type == nullptr || type->value == "default") continue;
    if (type->value == "llama3") {
      if (!std::exchange(is_scaled, true)) TakeLlama3Scaling(*type, importer);
      continue;
    }
    importer.Approximate(
        *type, "ours has plain rotary positions and those of Llama 3.1");
    // The numbers of that kind need no errors of their own.
    for (const char* number : kLlama3Numbers) LookAtRope(importer, number);
  }
  for (const char* key :
       {"partial_rotary_factor", "rope_scaling.partial_rotary_factor",
        "rope_parameters.partial_rotary_factor"}) {
    const Setting* setting = importer.Look(key);
    if (setting == nullptr || setting->value == "1" ||
        setting->value == "1.0") {
      continue;
    }
    importer.Approximate(*setting, "ours turns whole heads");
  }
  // Newer files keep the base among the other rotary parameters.
  const Setting* base = importer.Look("rope_theta");
  const Setting* nested = LookAtRope(importer, "rope_theta");
  if (base != nullptr && nested != nullptr && base->value != nested->value) {
    importer.Error(
        nested, nested->key,
        absl::StrCat("found '", nested->value, "', but rope_theta on line ",
                     base->line, " is '", base->value, "'; remove one"));
  }
  const Setting* theta = nested != nullptr ? nested : base;
  importer.Set("model.rope_theta",
               theta == nullptr ? family.theta : theta->value,
               theta == nullptr ? kDefault : theta->key, theta);
}

// Whether all layers have the window, or none has: by layer_types, or else by
// the layer from which on they have it. An error if only some have.
bool AllHaveWindow(const Family& family, Importer& importer) {
  const int64_t num_layers = importer.job().model.num_layers;
  const Setting* types = importer.Look("layer_types");
  if (types != nullptr) {
    const std::vector<std::string> layers = absl::StrSplit(types->value, ' ');
    const auto sliding = std::ranges::count(layers, "sliding_attention");
    const auto full = std::ranges::count(layers, "full_attention");
    if (static_cast<int64_t>(layers.size()) != num_layers ||
        (full != num_layers && sliding != num_layers)) {
      importer.Error(
          types, types->key,
          absl::StrCat("found '", types->value, "'; expected ", num_layers,
                       " times full_attention or as many times "
                       "sliding_attention, since ours attends "
                       "alike in all layers"));
      return false;
    }
    return sliding == num_layers;
  }
  if (!family.window_is_optional) return true;
  const int64_t first = importer.Integer("max_window_layers", 0, 28);
  if (first >= num_layers) return false;
  if (first > 0) {
    importer.Error("max_window_layers",
                   absl::StrCat("layers from ", first,
                                " on have a sliding window and those before "
                                "have none; ours attends alike in all layers"));
  }
  return true;
}

void TakeWindow(const Family& family, Importer& importer) {
  const Setting* window = importer.Look("sliding_window");
  const Setting* used = importer.Look("use_sliding_window");
  const bool is_used =
      used != nullptr ? used->value == "true" : !family.window_is_optional;
  const bool has_window =
      window != nullptr ||
      (!importer.IsEmpty("sliding_window") && *family.window != '\0');
  importer.Ignore({"max_window_layers", "layer_types"});
  // layer_types of Qwen say full_attention also where the window is not used.
  if (!has_window || !is_used || !AllHaveWindow(family, importer)) return;
  const std::string size = window == nullptr ? family.window : window->value;
  importer.Set("model.sliding_window", size,
               window == nullptr ? kDefault : window->key, window);
  // A window no shorter than the sequences changes nothing.
  const ModelSpec& model = importer.job().model;
  if (model.sliding_window < model.sequence_length) return;
  importer.Set("model.sliding_window", "0",
               absl::StrCat("sliding_window ", size,
                            " is not below the sequence length"));
}

void TakeModel(const Family& family, const ImportOptions& options,
               Importer& importer) {
  importer.Set("model.feed_forward", FeedForwardName(family.feed_forward),
               "model_type");
  for (const FrameworkKey& key : family.keys) {
    Take(importer, key.job_path, key.name, key.default_text);
  }
  for (const auto& [key, usual, why] : family.usual) {
    importer.RefuseUnless(key, {"", usual}, why);
  }
  if (!options.sequence_length.has_value() &&
      family.default_length != nullptr) {
    Take(importer, "model.sequence_length", family.length,
         family.default_length);
  }
  if (family.learns_positions) {
    Take(importer, "model.learned_positions", family.length,
         family.default_length);
  }
  const ModelSpec& model = importer.job().model;
  if (family.ffn_hidden != nullptr) {
    Take(importer, "model.ffn_hidden", family.ffn_hidden,
         absl::StrCat(family.default_ffn * model.hidden).c_str());
  }
  if (model.mla.kv_rank > 0) {
    importer.Set(
        "model.head_dim",
        absl::StrCat(model.mla.nope_head_dim + model.mla.rope_head_dim),
        "qk_nope_head_dim + qk_rope_head_dim");
    importer.Ignore({"num_key_value_heads"});
  }
  importer.NoteIfThere({"num_nextn_predict_layers"},
                       "the layers that predict further tokens are left out");
  importer.TakeTable();
  const Setting* tied = importer.Look("tie_word_embeddings");
  const bool is_tied =
      tied == nullptr ? family.ties_embedding : tied->value == "true";
  importer.Set("model.ties_embedding", is_tied ? "true" : "false",
               tied == nullptr ? kDefault : "tie_word_embeddings", tied);
  if (family.qkv_bias) importer.Set("model.qkv_bias", "true", "model_type");
  if (family.linear_bias) {
    importer.Set("model.linear_bias", "true", "model_type");
  }
  if (family.qk_norm) importer.Set("model.qk_norm", "true", "model_type");
  if (family.norm != NormKind::kRms) {
    importer.Set("model.norm", NormKindName(family.norm), "model_type");
  }
  if (*family.approximation != '\0') {
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
    case FeedForward::kGelu: {
      importer.RefuseUnless(
          family.activation,
          {"", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"},
          "this family has GELU");
      const Setting* activation = importer.Look(family.activation);
      if (activation != nullptr && activation->value == "gelu") {
        importer.Approximate(*activation,
                             "ours has GELU in its tanh form (gelu_new)");
      }
      break;
    }
  }
}

void CheckBiases(Importer& importer) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (importer.IsOn(key)) {
      importer.Approximate(*importer.Look(key), "ours has no biases");
    }
  }
}

// The job's sequences must be those that the model's positions were made for.
void CheckLength(const Family& family, int64_t length, Importer& importer) {
  const int64_t most =
      importer.Integer(family.length, 1, std::numeric_limits<int32_t>::max());
  if (length <= most) return;
  importer.Error(family.length,
                 absl::StrCat("the model has ", most,
                              " positions, but model.sequence_length is ",
                              length, "; lower that, or raise this"));
}

void CheckDropout(const ImportOptions& options, Importer& importer) {
  for (const char* key : {"attention_dropout", "resid_pdrop", "embd_pdrop",
                          "attn_pdrop", "hidden_dropout"}) {
    const Setting* dropout = importer.Look(key);
    double share = 0;
    if (dropout == nullptr ||
        (absl::SimpleAtod(dropout->value, &share) && share == 0)) {
      continue;
    }
    if (options.is_exact) {
      importer.Error(dropout, key,
                     absl::StrCat("found '", dropout->value,
                                  "'; ours has no dropout; set it to 0"));
    } else if (dropout != nullptr) {
      importer.Note(absl::StrCat(key, " ", dropout->value, ": ours has none"));
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
    if (!family->learns_positions) importer.Ignore({family->length});
  }
  TakeModel(*family, options, importer);
  if (!family->learns_positions) CheckRotary(*family, importer);
  TakeWindow(*family, importer);
  CheckActivation(*family, importer);
  CheckBiases(importer);
  CheckDropout(options, importer);
  for (const char* key : {"torch_dtype", "dtype"}) {
    const Setting* type = importer.Look(key);
    if (type == nullptr) continue;
    importer.SetPrecision(type->value == "bfloat16"  ? "bf16"
                          : type->value == "float16" ? "fp16"
                                                     : "fp32",
                          key, type);
  }
  if (options.is_exact) {
    if (options.sequence_length.has_value()) {
      CheckLength(*family, *options.sequence_length, importer);
    }
    for (const auto& [key, usual, why] : kExactUsual) {
      importer.RefuseUnless(key, {"", usual}, why);
    }
    importer.Ignore(kHarmlessKeys);
    return;
  }
  importer.NoteIfThere({"quantization_config.quant_method"},
                       "weights are trained unquantized");
  if (importer.IsTrainable()) return;
  importer.Note(
      "the model can be planned and exported; workers cannot train it yet");
  if (importer.job().training.precision == "fp32") {
    importer.SetPrecision(
        "bf16", "assumed: such models are planned in bf16, fp8 or fp4",
        nullptr);
  }
}

const FrameworkAdapter& Adapter() {
  static const FrameworkAdapter adapter = {
      .name = "huggingface",
      .title = "Hugging Face Transformers",
      .version = "config.json of 4.x and 5.x",
      .configuration = "a model's config.json",
      .keys = HuggingFaceKeys(),
      .read = ReadJsonSettings,
      .take = ImportHuggingFace,
      .why_no_export =
          "a Hugging Face config.json describes a model and has no layout",
  };
  return adapter;
}

}  // namespace

Framework HuggingFaceAdapter() { return &Adapter(); }

}  // namespace millrace
