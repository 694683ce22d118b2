#include <string>

#include "absl/strings/str_cat.h"
#include "planner/importer.h"

namespace millrace {
namespace {

// Which families have only what our model has, if their options are so.
void CheckArchitecture(Importer& importer) {
  const std::string ours =
      "only LlamaForCausalLM and MistralForCausalLM can be ours (RMSNorm, "
      "rotary positions, grouped-query attention, SwiGLU, no biases)";
  const Setting* type = importer.Look("model_type");
  if (type != nullptr && type->value == "qwen2") {
    importer.Error(type, "model_type",
                   "found 'qwen2', whose query, key and value projections have "
                   "biases; ours have none");
    (void)importer.Look("architectures");
    return;
  }
  importer.RefuseUnless("model_type", {"llama", "mistral"}, ours);
  importer.RefuseUnless("architectures",
                        {"", "LlamaForCausalLM", "MistralForCausalLM"}, ours);
}

void CheckRotary(Importer& importer) {
  const std::string plain =
      "ours has plain rotary positions; remove it to train with those";
  for (const char* key : {"rope_scaling.rope_type", "rope_scaling.type",
                          "rope_parameters.rope_type"}) {
    importer.RefuseUnless(key, {"", "default"}, plain);
  }
  importer.RefuseUnless("partial_rotary_factor", {"", "1", "1.0"}, plain);
  // Newer files keep the base with the other rotary parameters.
  const Setting* base = importer.Look("rope_theta");
  const Setting* nested = importer.Look("rope_parameters.rope_theta");
  if (base != nullptr && nested != nullptr && base->value != nested->value) {
    importer.Error(
        nested, "rope_parameters.rope_theta",
        absl::StrCat("found '", nested->value, "', but rope_theta on line ",
                     base->line, " is '", base->value, "'; remove one"));
  }
  const Setting* theta = nested != nullptr ? nested : base;
  importer.Set(
      "model.rope_theta", theta == nullptr ? "10000" : theta->value,
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

}  // namespace

void ImportHuggingFace(const ImportOptions& options, Importer& importer) {
  CheckArchitecture(importer);
  if (importer.has_errors()) return;  // The rest may mean something else.
  if (options.sequence_length.has_value()) {
    importer.Set("model.sequence_length",
                 absl::StrCat(*options.sequence_length), "--sequence-length");
    (void)importer.Look("max_position_embeddings");
  }
  importer.TakeTable();
  // Mistral's default differs from Llama's, so it must be there.
  if (importer.Look("model_type")->value == "mistral") {
    importer.Require("model.kv_heads");
  }
  CheckRotary(importer);
  CheckWindow(importer);
  importer.RefuseUnless("hidden_act", {"", "silu"},
                        "ours has SwiGLU, whose activation is silu");
  importer.RefuseUnless("tie_word_embeddings", {"", "false"},
                        "ours has a head of its own; set it to false to train "
                        "the model with one");
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    importer.RefuseUnless(key, {"", "false"}, "ours has no biases");
  }
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
}

}  // namespace millrace
