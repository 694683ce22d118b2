#include "planner/frameworks/stored_names.h"

#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace millrace {
namespace {

// A parameter of a layer, or outside layers with its whole name.
struct NameRow {
  const char* ours;
  const char* theirs;
  int64_t from_end = 0;
  bool is_transposed = false;
};

constexpr NameRow kFusedRows[] = {
    {"self_attn.q_proj.weight", "self_attn.qkv_proj.weight"},
    {"self_attn.k_proj.weight", "self_attn.qkv_proj.weight", 2},
    {"self_attn.v_proj.weight", "self_attn.qkv_proj.weight", 1},
    {"mlp.gate_proj.weight", "mlp.gate_up_proj.weight"},
    {"mlp.up_proj.weight", "mlp.gate_up_proj.weight", 1},
};

constexpr NameRow kGpt2Rows[] = {
    {"model.embed_tokens.weight", "transformer.wte.weight"},
    {"model.embed_positions.weight", "transformer.wpe.weight"},
    {"model.norm.weight", "transformer.ln_f.weight"},
    {"model.norm.bias", "transformer.ln_f.bias"},
    {"input_layernorm.weight", "ln_1.weight"},
    {"input_layernorm.bias", "ln_1.bias"},
    {"self_attn.q_proj.weight", "attn.c_attn.weight", 0, true},
    {"self_attn.k_proj.weight", "attn.c_attn.weight", 2, true},
    {"self_attn.v_proj.weight", "attn.c_attn.weight", 1, true},
    {"self_attn.q_proj.bias", "attn.c_attn.bias"},
    {"self_attn.k_proj.bias", "attn.c_attn.bias", 2},
    {"self_attn.v_proj.bias", "attn.c_attn.bias", 1},
    {"self_attn.o_proj.weight", "attn.c_proj.weight", 0, true},
    {"self_attn.o_proj.bias", "attn.c_proj.bias"},
    {"post_attention_layernorm.weight", "ln_2.weight"},
    {"post_attention_layernorm.bias", "ln_2.bias"},
    {"mlp.up_proj.weight", "mlp.c_fc.weight", 0, true},
    {"mlp.up_proj.bias", "mlp.c_fc.bias"},
    {"mlp.down_proj.weight", "mlp.c_proj.weight", 0, true},
    {"mlp.down_proj.bias", "mlp.c_proj.bias"},
};

struct NamingRow {
  TensorNaming naming;
  const char* layers;  // The text in front of a layer's number.
  const char* marker;  // A tensor that only this naming has.
  std::span<const NameRow> rows;
};
constexpr char kOurLayers[] = "model.layers.";
const NamingRow kNamings[] = {
    {TensorNaming::kFused, kOurLayers,
     "model.layers.0.self_attn.qkv_proj.weight", kFusedRows},
    {TensorNaming::kGpt2, "transformer.h.", "transformer.wte.weight",
     kGpt2Rows},
};

}  // namespace

StoredName NameInFiles(TensorNaming naming, absl::string_view parameter) {
  for (const NamingRow& of : kNamings) {
    if (of.naming != naming) continue;
    absl::string_view name = parameter;
    std::string prefix;
    if (absl::ConsumePrefix(&name, kOurLayers)) {
      const absl::string_view number = name.substr(0, name.find('.'));
      prefix = absl::StrCat(of.layers, number, ".");
      name.remove_prefix(number.size() + 1);
    }
    for (const NameRow& row : of.rows) {
      if (name != row.ours) continue;
      return {absl::StrCat(prefix, row.theirs), row.from_end,
              row.is_transposed};
    }
  }
  return {.tensor = std::string(parameter)};
}

TensorNaming NamingOfTensors(
    const std::function<bool(absl::string_view name)>& has) {
  for (const NamingRow& of : kNamings) {
    if (has(of.marker)) return of.naming;
  }
  return TensorNaming::kPlain;
}

}  // namespace millrace
