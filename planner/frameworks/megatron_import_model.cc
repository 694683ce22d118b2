// Imports the model that flags of Megatron-LM, or overrides of frameworks on
// its core, describe.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "planner/frameworks/megatron.h"

namespace millrace {
namespace {

// An absent switch is off for Megatron-LM. Frameworks on its core take it from
// a recipe whose values are not known here, so the file must state it.
bool Switch(Importer& importer, const char* flag) {
  if (importer.framework() != MegatronAdapter() && !importer.IsSaid(flag)) {
    importer.Error(nullptr, flag,
                   "missing; what the recipe has is not known here: say true "
                   "or false");
  }
  return importer.IsOn(flag);
}

constexpr char kGptDefault[] = "default of Megatron-LM";

void TakeMegatronFamily(Importer& importer) {
  const bool is_gated = Switch(importer, "swiglu");
  importer.RefuseUnless("squared-relu", {"", "True"},
                        "ours has SwiGLU, GELU or the square of ReLU");
  // NeMo takes the activation from its recipe.
  const Setting* recipe = importer.framework() == NemoAdapter()
                              ? importer.Look("factory")
                              : nullptr;
  const bool is_squared =
      importer.IsOn("squared-relu") ||
      (recipe != nullptr && absl::StrContains(recipe->value, "nemotron"));
  if (is_gated && is_squared) {
    const Setting* squared =
        importer.IsOn("squared-relu") ? importer.Look("squared-relu") : recipe;
    importer.Error(squared, squared->key,
                   absl::StrCat(squared == recipe ? "its square of ReLU " : "",
                                "contradicts ", importer.Look("swiglu")->key,
                                "; remove one"));
  }
  const FeedForward kind = is_gated     ? FeedForward::kSwiglu
                           : is_squared ? FeedForward::kSquaredRelu
                                        : FeedForward::kGelu;
  importer.Set("model.feed_forward", FeedForwardName(kind),
               is_squared ? "squared-relu"
               : is_gated ? "swiglu"
                          : "default of Megatron-LM: GELU");
  const char* untie = "untie-embeddings-and-output-weights";
  importer.Set("model.ties_embedding",
               Switch(importer, untie) ? "false" : "true", untie);
}

// Reads zeros and ones by layer from "([0]*3+[1]*58)", "[0,1,1]" or "0 1 1".
// Returns nothing for other text.
std::optional<std::vector<bool>> LayerPattern(const std::string& text) {
  const std::string plain =
      absl::StrReplaceAll(text, {{"(", ""}, {")", ""}, {" ", ","}});
  std::vector<bool> layers;
  for (const absl::string_view term : absl::StrSplit(plain, '+')) {
    const std::vector<std::string> parts = absl::StrSplit(term, '*');
    int64_t times = 1;
    if (parts.size() > 2 ||
        (parts.size() == 2 && !absl::SimpleAtoi(parts[1], &times)) ||
        times < 1 || times > 10000) {
      return std::nullopt;
    }
    const std::vector<std::string> items =
        absl::StrSplit(parts[0], absl::ByAnyChar("[],"), absl::SkipEmpty());
    for (int64_t i = 0; i < times; ++i) {
      for (const std::string& item : items) {
        if (item != "0" && item != "1") return std::nullopt;
        layers.push_back(item == "1");
      }
    }
  }
  return layers;
}

void TakeDenseLayers(Importer& importer) {
  const Setting* frequency = importer.Look("moe-layer-freq");
  if (frequency == nullptr || frequency->value == "1") return;
  const std::optional<std::vector<bool>> layers =
      LayerPattern(frequency->value);
  int64_t num_dense = 0;
  bool first_ones =
      layers.has_value() &&
      static_cast<int64_t>(layers->size()) == importer.job().model.num_layers;
  for (size_t i = 0; first_ones && i < layers->size(); ++i) {
    if ((*layers)[i]) continue;
    first_ones = static_cast<int64_t>(i) == num_dense++;
  }
  if (!first_ones) {
    importer.Error(frequency, "moe-layer-freq",
                   absl::StrCat("found '", frequency->value,
                                "'; ours has experts in all of its ",
                                importer.job().model.num_layers,
                                " layers but the first ones"));
    return;
  }
  importer.Set("model.moe.num_dense_layers", absl::StrCat(num_dense),
               "moe-layer-freq", frequency);
}

void TakeExperts(Importer& importer) {
  if (importer.Look("num-experts") == nullptr) return;
  const int64_t experts = importer.Integer("num-experts", 1, 1);
  importer.Set("model.moe.num_experts", absl::StrCat(experts), "num-experts");
  importer.Set("model.moe.experts_per_token",
               absl::StrCat(importer.Integer("moe-router-topk", 1, 2)),
               "moe-router-topk");
  const int64_t width = importer.Integer("moe-ffn-hidden-size", 1,
                                         importer.job().model.ffn_hidden);
  importer.Set("model.moe.expert_hidden", absl::StrCat(width),
               "moe-ffn-hidden-size, else ffn-hidden-size");
  const char* shared = "moe-shared-expert-intermediate-size";
  const int64_t shared_width = importer.Integer(shared, 1, 0);
  if (width > 0 && shared_width % width != 0) {
    importer.Error(
        shared, absl::StrCat(shared_width,
                             " is no multiple of moe-ffn-hidden-size ", width,
                             "; our shared experts are as wide as "
                             "the others"));
  } else if (shared_width > 0) {
    importer.Set("model.moe.num_shared_experts",
                 absl::StrCat(shared_width / width), shared);
  }
  const Setting* frequency = importer.Look("moe-layer-freq");
  const bool has_dense = frequency != nullptr && frequency->value != "1";
  if (!has_dense && importer.Look("ffn-hidden-size") == nullptr) {
    importer.Set("model.ffn_hidden", absl::StrCat(width),
                 "of no dense layer, so unused");
  }
  TakeDenseLayers(importer);
  importer.Ignore(
      {"moe-grouped-gemm", "moe-token-dispatcher-type", "moe-permute-fusion"});
}

// Must run before the table, whose defaults would set the same keys.
void TakeLatentAttention(Importer& importer) {
  if (!importer.IsOn("multi-latent-attention")) return;
  const std::pair<const char*, std::pair<const char*, int64_t>> sizes[] = {
      {"model.mla.kv_rank", {"kv-lora-rank", 32}},
      {"model.mla.nope_head_dim", {"qk-head-dim", 128}},
      {"model.mla.rope_head_dim", {"qk-pos-emb-head-dim", 64}},
      {"model.mla.value_head_dim", {"v-head-dim", 128}}};
  for (const auto& [path, flag] : sizes) {
    importer.Set(path,
                 absl::StrCat(importer.Integer(flag.first, 1, flag.second)),
                 flag.first);
  }
  importer.Set("model.mla.query_rank",
               absl::StrCat(importer.Integer("q-lora-rank", 1, 0)),
               "q-lora-rank");
  const LatentAttention& mla = importer.job().model.mla;
  importer.Set("model.head_dim",
               absl::StrCat(mla.nope_head_dim + mla.rope_head_dim),
               "qk-head-dim + qk-pos-emb-head-dim");
  importer.Set("model.kv_heads",
               absl::StrCat(importer.Integer("num-attention-heads", 1, 1)),
               "num-attention-heads, as with latent attention");
  importer.Ignore({"qk-layernorm", "rotary-scaling-factor", "kv-channels",
                   "num-query-groups", "mscale", "mscale-all-dim"});
}

// Takes the parts of GPT models, which are Megatron-LM's defaults: LayerNorm,
// learned positions, biases of all products.
void TakeGptParts(Importer& importer) {
  importer.RefuseUnless("normalization", {"", "LayerNorm", "RMSNorm"},
                        "ours has LayerNorm or RMSNorm");
  const Setting* norm = importer.Look("normalization");
  const bool is_rms = norm != nullptr && norm->value == "RMSNorm";
  importer.Set("model.norm",
               NormKindName(is_rms ? NormKind::kRms : NormKind::kLayer),
               norm == nullptr ? kGptDefault : "normalization", norm);
  importer.RefuseUnless("position-embedding-type",
                        {"", "learned_absolute", "rope"},
                        "ours has learned or rotary positions");
  const Setting* positions = importer.Look("position-embedding-type");
  if (positions == nullptr || positions->value != "rope") {
    const int64_t length = importer.job().model.sequence_length;
    importer.Set(
        "model.learned_positions",
        absl::StrCat(importer.Integer("max-position-embeddings", 1, length)),
        importer.Look("max-position-embeddings") == nullptr
            ? "the sequence length"
            : "max-position-embeddings");
  }
  if (importer.IsOn("disable-bias-linear")) return;
  for (const char* path : {"model.linear_bias", "model.qkv_bias"}) {
    importer.Set(path, "true", kGptDefault);
  }
}

// Looks at parts that our model lacks. A plan leaves out the small ones with a
// note; the others are errors if workers train the model.
void CheckArchitecture(Importer& importer) {
  // Latent attention has norms of its latent vectors instead, as ours has.
  if (importer.job().model.mla.kv_rank == 0) {
    for (const auto& [path, flag] :
         {std::pair("model.qk_norm", "qk-layernorm"),
          std::pair("model.qkv_bias", "add-qkv-bias")}) {
      importer.Set(path, importer.Look(flag) != nullptr ? "true" : "false",
                   flag);
    }
  }
  for (const char* key :
       {"use-rope-scaling", "rotary-seq-len-interpolation-factor",
        "rotary-percent"}) {
    const Setting* setting = importer.Look(key);
    if (setting == nullptr || setting->value == "1" ||
        setting->value == "1.0") {
      continue;
    }
    importer.Approximate(
        *setting, "our model has nothing of the kind, which is little work");
  }
  const bool trains = importer.IsTrainable();
  auto demand = [&](const char* key, const std::vector<std::string>& allowed,
                    const std::string& why) {
    if (trains) {
      importer.RefuseUnless(key, allowed, why);
    } else {
      importer.NoteIfThere({key}, "planned without; it changes little");
    }
  };
  const std::string ours = "ours is of the Llama family; add ";
  if (trains && importer.job().model.feed_forward == FeedForward::kGelu) {
    TakeGptParts(importer);
  } else if (trains) {
    importer.RefuseUnless("disable-bias-linear", {"True"},
                          absl::StrCat(ours, "--disable-bias-linear"));
    importer.RefuseUnless("normalization", {"RMSNorm"},
                          absl::StrCat(ours, "--normalization RMSNorm"));
    importer.RefuseUnless("position-embedding-type", {"rope"},
                          absl::StrCat(ours, "--position-embedding-type rope"));
  } else {
    importer.Note(
        "the model can be planned and exported, with RMSNorm, rotary positions "
        "and no biases; workers cannot train it yet");
    importer.Ignore(
        {"disable-bias-linear", "normalization", "position-embedding-type"});
  }
  for (const char* key :
       {"rotary-interleaved", "apply-layernorm-1p",
        "apply-residual-connection-post-layernorm", "mtp-num-layers"}) {
    demand(key, {""}, "our model has nothing of the kind");
  }
  for (const char* key : {"window-size", "heterogeneous-layers-config-path"}) {
    importer.RefuseUnless(key, {""}, "our model has nothing of the kind");
  }
}

// Sets the rows of the embedding: the given size, one more for the null
// tokenizer's end-of-document id, and padding to a multiple that depends on the
// tensor axis.
void TakeVocabulary(Importer& importer) {
  const Setting* padded = importer.Look("padded-vocab-size");
  const Setting* size = importer.Look("vocab-size");
  const int64_t multiple =
      importer.Integer("make-vocab-size-divisible-by", 1, 128) *
      importer.job().layout.tensor.value_or(1);
  const Setting* tokenizer = importer.Look("tokenizer-type");
  if (padded != nullptr) {
    importer.Set("model.vocab_size", padded->value, padded->key, padded);
    return;
  }
  if (size == nullptr) {
    const bool is_flag = importer.framework() == MegatronAdapter();
    importer.Missing(
        "model.vocab_size", is_flag ? "vocab-size" : "padded-vocab-size",
        is_flag ? "missing; Megatron-LM takes it from the tokenizer, which is "
                  "not at hand: give --vocab-size N"
                : "missing; what the recipe has is not known here: give the "
                  "rows of the embedding");
    return;
  }
  const int64_t given = importer.Integer("vocab-size", 1, 1);
  auto padded_rows = [multiple](int64_t rows) {
    return (rows + multiple - 1) / multiple * multiple;
  };
  int64_t rows = padded_rows(given);
  if (tokenizer != nullptr && tokenizer->value == "NullTokenizer") {
    const int64_t later = rows;
    rows = padded_rows(given + 1);
    if (rows != later) {
      importer.Note(absl::StrCat("vocab-size ", given,
                                 " of a NullTokenizer: with the row that cores "
                                 "before 0.18 add; later ones have ",
                                 later, " rows in all"));
    }
  }
  importer.Set("model.vocab_size", absl::StrCat(rows),
               absl::StrCat("vocab-size, padded to a multiple of ", multiple),
               size);
}

void TakeLengthAndDropout(Importer& importer) {
  const int64_t length = importer.job().model.sequence_length;
  const int64_t longest =
      importer.Integer("max-position-embeddings", 1, length);
  if (longest < length) {
    importer.Error("max-position-embeddings",
                   absl::StrCat(longest, " is below seq-length ", length));
  }
  for (const char* key : {"attention-dropout", "hidden-dropout"}) {
    const Setting* dropout = importer.Look(key);
    double rate = 0;
    if (dropout == nullptr) {
      if (importer.framework() == MegatronAdapter()) {
        importer.Note(absl::StrCat(key, " 0.1, its default: ours has none"));
      }
    } else if (!absl::SimpleAtod(dropout->value, &rate)) {
      importer.Error(
          dropout, key,
          absl::StrCat("expected a number, found '", dropout->value, "'"));
    } else if (rate != 0) {
      importer.Note(absl::StrCat(key, " ", dropout->value, ": ours has none"));
    }
  }
}

// Sets the widths that Megatron-LM derives if they are not given.
void TakeWidths(Importer& importer) {
  const bool has_defaults = importer.framework() == MegatronAdapter();
  if (has_defaults && !importer.IsSet("model.kv_heads")) {
    importer.Set("model.kv_heads", "1", "default of Megatron-LM");
  }
  const int64_t hidden = importer.job().model.hidden;
  if (importer.IsSet("model.ffn_hidden") || hidden == 0 || !has_defaults) {
    return;
  }
  if (importer.job().model.feed_forward == FeedForward::kSwiglu) {
    importer.Set("model.ffn_hidden", absl::StrCat(8 * hidden / 3 / 64 * 64),
                 "default of Megatron-LM: 8/3 of hidden-size");
  } else {
    importer.Set("model.ffn_hidden", absl::StrCat(4 * hidden),
                 "default of Megatron-LM: 4 times hidden-size");
  }
}

}  // namespace

void ImportMegatronModel(Importer& importer) {
  TakeMegatronFamily(importer);
  TakeLatentAttention(importer);
  // Frameworks on its core lack this switch.
  if (importer.framework() == MegatronAdapter() &&
      !importer.IsSet("model.kv_heads") &&
      !importer.IsOn("group-query-attention") &&
      importer.Look("num-attention-heads") != nullptr) {
    importer.Set("model.kv_heads", importer.Look("num-attention-heads")->value,
                 "num-attention-heads, as without --group-query-attention",
                 importer.Look("num-attention-heads"));
    importer.Ignore({"num-query-groups"});
  }
  importer.TakeTable();
  TakeWidths(importer);
  TakeExperts(importer);
  CheckArchitecture(importer);
  TakeVocabulary(importer);
  if (importer.has_errors()) return;
  TakeLengthAndDropout(importer);
}

}  // namespace millrace
