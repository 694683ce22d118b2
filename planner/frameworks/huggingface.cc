#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "planner/frameworks/huggingface_families.h"
#include "planner/frameworks/job_importer.h"
#include "planner/text/yaml_tree.h"

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
    "cache_implementation",
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

// The places of rotary settings: of Transformers 4, of 5, and of 5 where layers
// differ.
constexpr const char* kRopeSections[] = {"rope_scaling", "rope_parameters",
                                         "rope_parameters.full_attention"};

// The setting of that name in any section. Null if there is none; an error
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

// Takes numbers of rope_scaling, without which the kind that `type` states is
// not known.
void TakeScaling(const Setting& type, std::span<const char* const> names,
                 Importer& importer) {
  importer.Set("model.rope_scaling.kind", type.value, type.key, &type);
  for (const char* name : names) {
    const std::string job_path = absl::StrCat("model.rope_scaling.", name);
    if (const Setting* setting = LookAtRope(importer, name);
        setting != nullptr) {
      importer.Set(job_path, setting->value, setting->key, setting);
      continue;
    }
    importer.Missing(
        job_path,
        absl::StrCat(type.key.substr(0, type.key.rfind('.')), ".", name),
        absl::StrCat("missing, though ", type.key, " on line ", type.line,
                     " is ", type.value, "; expected a number"));
  }
}

// Takes the factors of LongRoPE: those for short sequences up to the length
// that the model saw first, else those for long ones.
void TakeLongrope(const Setting& type, Importer& importer) {
  constexpr char kOriginal[] = "original_max_position_embeddings";
  const Setting* original = importer.Look(kOriginal);
  const Setting* nested = LookAtRope(importer, kOriginal);  // Or in both.
  if (original == nullptr) original = nested;
  if (nested != nullptr && nested->value != original->value) {
    return importer.Error(nested, nested->key,
                          absl::StrCat("found '", nested->value, "', but ",
                                       kOriginal, " is ", original->value));
  }
  const Setting* stated = LookAtRope(importer, "attention_factor");
  const Setting* shorter = LookAtRope(importer, "short_factor");
  const Setting* longer = LookAtRope(importer, "long_factor");
  double first = 0;
  if (original == nullptr || shorter == nullptr || longer == nullptr ||
      !absl::SimpleAtod(original->value, &first) || first <= 1) {
    importer.Error(&type, type.key,
                   absl::StrCat("found '", type.value, "', but ", kOriginal,
                                " (above one), short_factor or long_factor is "
                                "missing; give all three"));
    return;
  }
  const auto length = static_cast<double>(importer.job().model.sequence_length);
  const Setting* factors = length > first ? longer : shorter;
  importer.Set("model.rope_scaling.kind", "longrope", type.key, &type);
  importer.Set(
      "model.rope_factors",
      absl::StrCat("[", absl::StrReplaceAll(factors->value, {{" ", ", "}}),
                   "]"),
      factors->key, factors);
  if (stated != nullptr) {
    importer.Set("model.rope_scaling.attention_factor", stated->value,
                 stated->key, stated);
    return;
  }
  const double stretch =
      static_cast<double>(importer.Integer(
          "max_position_embeddings", 1, std::numeric_limits<int32_t>::max())) /
      first;
  const double factor =
      stretch <= 1 ? 1 : std::sqrt(1 + std::log(stretch) / std::log(first));
  importer.Set("model.rope_scaling.attention_factor", NumberToText(factor),
               absl::StrCat("max_position_embeddings / ", original->key));
}

// Takes how many elements of a head are rotated.
void TakeRotaryPart(const Family& family, Importer& importer) {
  for (const char* key :
       {"partial_rotary_factor", "rope_scaling.partial_rotary_factor",
        "rope_parameters.partial_rotary_factor"}) {
    const Setting* setting = importer.Look(key);
    double share = 0;
    if (setting == nullptr ||
        (absl::SimpleAtod(setting->value, &share) && share == 1)) {
      continue;
    }
    if (!family.rotates_part) {
      importer.Approximate(*setting, "ours turns whole heads of this family");
      continue;
    }
    const ModelSpec& model = importer.job().model;
    const int64_t head_dim =
        model.head_dim > 0
            ? model.head_dim
            : model.hidden / std::max<int64_t>(model.num_heads, 1);
    const auto rotated =
        static_cast<int64_t>(share * static_cast<double>(head_dim));
    if (rotated < 2 || rotated > head_dim) {
      importer.Error(
          setting, key,
          absl::StrCat("found '", setting->value,
                       "'; expected a share of head_dim, which is ", head_dim));
      continue;
    }
    importer.Set("model.rotary_dim", absl::StrCat(rotated), key, setting);
  }
}

void CheckRotary(const Family& family, Importer& importer) {
  bool is_scaled = false;
  for (const char* name : {"rope_type", "type"}) {
    const Setting* type = LookAtRope(importer, name);
    if (type == nullptr || type->value == "default") continue;
    const bool is_llama3 = type->value == "llama3";
    if (is_llama3 || type->value == "linear" || type->value == "longrope") {
      if (std::exchange(is_scaled, true)) continue;
      if (type->value == "longrope") {
        TakeLongrope(*type, importer);
      } else {
        TakeScaling(*type, std::span(kLlama3Numbers).first(is_llama3 ? 4 : 1),
                    importer);
      }
      continue;
    }
    importer.Approximate(*type,
                         "ours has plain rotary positions and those of types "
                         "llama3, linear and longrope");
    // The numbers of that kind need no errors of their own.
    for (const char* number : kLlama3Numbers) LookAtRope(importer, number);
  }
  TakeRotaryPart(family, importer);
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

// Which layers attend to all before them.
struct GlobalLayers {
  bool are_all = false;
  int64_t period = 0;  // Every so many-th; 0: none.
};

// By layer_types, all layers or none or every so many-th are global. An error
// otherwise, and where the family's layers are alike in all but a window of all
// or none.
GlobalLayers GlobalLayersOf(const Family& family, const Setting& types,
                            Importer& importer) {
  const int64_t num_layers = importer.job().model.num_layers;
  const std::vector<std::string> layers = absl::StrSplit(types.value, ' ');
  const auto full = std::ranges::find(layers, "full_attention");
  // Beyond the last layer if none is global.
  const int64_t period = full - layers.begin() + 1;
  const bool are_all =
      std::ranges::count(layers, "full_attention") == num_layers;
  bool fits = static_cast<int64_t>(layers.size()) == num_layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool is_global =
        are_all || (static_cast<int64_t>(i) + 1) % period == 0;
    fits &= layers[i] == (is_global ? "full_attention" : "sliding_attention");
  }
  const bool may_differ = family.global_period > 0;
  if (!fits || (!may_differ && !are_all && full != layers.end())) {
    importer.Error(
        &types, types.key,
        absl::StrCat("found '", types.value, "'; expected ", num_layers,
                     " times full_attention or as many times "
                     "sliding_attention",
                     may_differ ? ", or sliding_attention with full_attention "
                                  "in every so many-th layer"
                                : ", since ours attends alike in all layers "
                                  "of this family"));
  }
  return {.are_all = are_all, .period = may_differ && !are_all ? period : 0};
}

// By layer_types, or else by the layer from which on they have a window, or by
// the family's pattern.
GlobalLayers GlobalLayersOf(const Family& family, Importer& importer) {
  if (const Setting* types = importer.Look("layer_types"); types != nullptr) {
    importer.Ignore({"sliding_window_pattern", "_sliding_window_pattern"});
    return GlobalLayersOf(family, *types, importer);
  }
  if (family.global_period > 0) {
    int64_t period = family.global_period;
    for (const char* key :
         {"_sliding_window_pattern", "sliding_window_pattern"}) {
      if (importer.Look(key) == nullptr) continue;
      period = importer.Integer(key, 1, 10000);
    }
    return {.are_all = period == 1, .period = period == 1 ? 0 : period};
  }
  if (!family.window_is_optional) return {};
  const int64_t num_layers = importer.job().model.num_layers;
  const int64_t first = importer.Integer("max_window_layers", 0, 28);
  if (first >= num_layers) return {.are_all = true};
  if (first > 0) {
    importer.Error("max_window_layers",
                   absl::StrCat("layers from ", first,
                                " on have a sliding window and those before "
                                "have none; ours attends alike in all layers "
                                "of this family"));
  }
  return {};
}

// The rotary base of layers with a window.
void TakeSlidingTheta(const Family& family, Importer& importer) {
  const Setting* theta = importer.Look("rope_local_base_freq");
  if (theta == nullptr) {
    theta = importer.Look("rope_parameters.sliding_attention.rope_theta");
  }
  importer.Set("model.sliding_rope_theta",
               theta == nullptr ? family.sliding_theta : theta->value,
               theta == nullptr ? kDefault : theta->key, theta);
}

void TakeWindow(const Family& family, Importer& importer) {
  const Setting* window = importer.Look("sliding_window");
  const Setting* used = importer.Look("use_sliding_window");
  const bool is_used =
      used != nullptr ? used->value == "true" : !family.window_is_optional;
  const bool has_window =
      window != nullptr ||
      (!importer.IsEmpty("sliding_window") && *family.window != '\0');
  importer.Ignore({"max_window_layers", "layer_types", "sliding_window_pattern",
                   "_sliding_window_pattern"});
  const bool has_two_bases = *family.sliding_theta != '\0';
  if (has_two_bases) {
    importer.Ignore({"rope_local_base_freq",
                     "rope_parameters.sliding_attention.rope_theta"});
    importer.RefuseUnless("rope_parameters.sliding_attention.rope_type",
                          {"", "default"},
                          "ours scales no positions of layers with a window");
  }
  // layer_types of Qwen say full_attention also where the window is not used.
  if (!has_window || !is_used) return;
  const GlobalLayers global = GlobalLayersOf(family, importer);
  if (global.are_all) return;
  const std::string size = window == nullptr ? family.window : window->value;
  importer.Set("model.sliding_window", size,
               window == nullptr ? kDefault : window->key, window);
  // A window no shorter than the sequences changes nothing.
  const ModelSpec& model = importer.job().model;
  if (global.period > 0) {
    importer.Set(
        "model.global_layer_period", absl::StrCat(global.period),
        importer.Look("layer_types") != nullptr ? "layer_types" : kDefault);
  }
  if (has_two_bases) {
    TakeSlidingTheta(family, importer);
    return;
  }
  if (model.sliding_window < model.sequence_length) return;
  if (global.period > 0) {
    importer.Set("model.global_layer_period", "0", "no layer has a window");
  }
  importer.Set("model.sliding_window", "0",
               absl::StrCat("sliding_window ", size,
                            " is not below the sequence length"));
}

void TakeModel(const Family& family, const ImportOptions& options,
               Importer& importer) {
  importer.Set("model.feed_forward", FeedForwardName(family.feed_forward),
               "model_type");
  for (const FrameworkKey& key : family.keys) {
    // No softcap, whatever the family has where the key is left out.
    if (absl::EndsWith(key.job_path, "_softcap") &&
        importer.IsEmpty(key.name)) {
      importer.Set(key.job_path, "0", key.name);
      continue;
    }
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
  const struct {
    const char* job_path;
    bool is_on;
  } flags[] = {{"model.qk_norm", family.qk_norm},
               {"model.norm_adds_one", family.norm_adds_one},
               {"model.output_norms", family.output_norms},
               {"model.scales_embedding", family.scales_embedding}};
  for (const auto& [job_path, is_on] : flags) {
    if (is_on) importer.Set(job_path, "true", "model_type");
  }
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
        importer.Set("model.feed_forward", "gelu_erf", family.activation,
                     activation);
      }
      break;
    }
    case FeedForward::kGeglu:
      // Transformers does not read it.
      importer.Ignore({"hidden_act"});
      importer.RefuseUnless(family.activation, {"", "gelu_pytorch_tanh"},
                            "this family has GELU in its tanh form");
      break;
    case FeedForward::kGeluErf:
      break;  // A form of kGelu.
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
