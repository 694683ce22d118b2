#include "planner/evaluate/known_models.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/text/yaml_map.h"

namespace millrace {
namespace {

using Need = YamlMap::Need;

std::string ItemPath(absl::string_view list, size_t index) {
  return absl::StrCat(list, "[", index, "]");
}

// The name's letters and digits, of which there must be some.
void ReadName(YamlMap& map, std::string* prefix) {
  std::string name;
  if (!map.Text("name", Need::kRequired, &name)) return;
  *prefix = PlainModelName(name);
  if (prefix->empty()) map.Error("name", "expected letters or digits");
}

void ReadFeedForward(YamlMap& dims, FeedForward* kind) {
  std::string name;
  if (!dims.Text("mlp", Need::kRequired, &name)) return;
  for (const FeedForward known :
       {FeedForward::kSwiglu, FeedForward::kGelu, FeedForward::kSquaredRelu}) {
    if (name != FeedForwardName(known)) continue;
    *kind = known;
    return;
  }
  dims.Error("mlp", absl::StrCat("expected swiglu, gelu or relu2, found '",
                                 name, "'"));
}

void ReadExperts(const YamlTree& tree, const std::string& path,
                 YamlErrors* errors, MixtureOfExperts* moe) {
  YamlMap map(tree, path, errors);
  map.Integer("experts", Need::kRequired, 1, &moe->num_experts);
  map.Integer("topk", Need::kRequired, 1, &moe->experts_per_token);
  map.Integer("moe_ffn", Need::kRequired, 1, &moe->expert_hidden);
  map.Integer("shared", Need::kOptional, 0, &moe->num_shared_experts);
  map.Integer("dense_layers", Need::kOptional, 0, &moe->num_dense_layers);
  map.Finish();
}

void ReadLatentAttention(const YamlTree& tree, const std::string& path,
                         YamlErrors* errors, LatentAttention* mla) {
  YamlMap map(tree, path, errors);
  std::string type;
  if (map.Text("type", Need::kRequired, &type) && type != "MLA") {
    map.Error("type", absl::StrCat("expected MLA, found '", type, "'"));
  }
  map.Integer("q_lora", Need::kOptional, 0, &mla->query_rank);
  map.Integer("kv_lora", Need::kRequired, 1, &mla->kv_rank);
  map.Integer("qk_nope", Need::kRequired, 1, &mla->nope_head_dim);
  map.Integer("qk_rope", Need::kRequired, 1, &mla->rope_head_dim);
  map.Integer("v", Need::kRequired, 1, &mla->value_head_dim);
  map.Finish();
}

void ReadHeadDim(YamlMap& dims, ModelSpec* model) {
  const bool is_latent = model->mla.kv_rank > 0;
  if (dims.Integer("head_dim", Need::kOptional, 1, &model->head_dim)) {
    if (is_latent) {
      dims.Error("head_dim", "follows from qk_nope and qk_rope; remove it");
    }
  } else if (is_latent) {
    model->head_dim = model->mla.nope_head_dim + model->mla.rope_head_dim;
  } else if (model->num_heads > 0 && model->hidden % model->num_heads == 0) {
    model->head_dim = model->hidden / model->num_heads;
  } else {
    dims.Error("head_dim", "missing; hidden is not divisible by heads");
  }
}

void ReadDims(const YamlTree& tree, const std::string& path, YamlErrors* errors,
              ModelSpec* model) {
  YamlMap dims(tree, path, errors);
  dims.Integer("vocab", Need::kRequired, 1, &model->vocab_size);
  dims.Integer("hidden", Need::kRequired, 1, &model->hidden);
  dims.Integer("layers", Need::kRequired, 1, &model->num_layers);
  dims.Integer("heads", Need::kRequired, 1, &model->num_heads);
  dims.Integer("kv_heads", Need::kRequired, 1, &model->num_kv_heads);
  dims.Integer("ffn", Need::kRequired, 1, &model->ffn_hidden);
  ReadFeedForward(dims, &model->feed_forward);
  dims.Flag("ties_embedding", Need::kOptional, &model->ties_embedding);
  if (const YamlTree* moe = dims.Map("moe", Need::kOptional)) {
    ReadExperts(*moe, dims.PathOf("moe"), errors, &model->moe);
  }
  if (const YamlTree* attention = dims.Map("attn", Need::kOptional)) {
    ReadLatentAttention(*attention, dims.PathOf("attn"), errors, &model->mla);
  }
  ReadHeadDim(dims, model);
  dims.Finish();
  if (!errors->status().ok()) return;  // ValidateModel would repeat them.
  ModelSpec whole = *model;
  whole.sequence_length = 1;
  const absl::Status valid = ValidateModel(whole);
  if (!valid.ok()) errors->Add(tree, path, valid.message());
}

KnownModel ReadModel(const YamlTree& tree, const std::string& path,
                     YamlErrors* errors) {
  KnownModel known;
  YamlMap map(tree, path, errors);
  ReadName(map, &known.prefix);
  map.Text("source", Need::kRequired, &known.source);
  map.Text("simplification", Need::kOptional, &known.simplification);
  if (const YamlTree* dims = map.Map("dims", Need::kRequired)) {
    ReadDims(*dims, map.PathOf("dims"), errors, &known.model);
  }
  map.Finish();
  return known;
}

KnownExperts ReadKnownExperts(const YamlTree& tree, const std::string& path,
                              YamlErrors* errors) {
  KnownExperts known;
  YamlMap map(tree, path, errors);
  ReadName(map, &known.prefix);
  map.Text("source", Need::kRequired, &known.source);
  map.Integer("experts", Need::kRequired, 1, &known.num_experts);
  map.Finish();
  return known;
}

UnplannableModels ReadUnplannable(const YamlTree& tree, const std::string& path,
                                  YamlErrors* errors) {
  UnplannableModels models;
  YamlMap map(tree, path, errors);
  map.Words("names", Need::kOptional, &models.prefixes);
  map.Words("words", Need::kOptional, &models.words);
  map.Text("why", Need::kRequired, &models.why);
  map.Finish();
  for (std::vector<std::string>* names : {&models.prefixes, &models.words}) {
    for (std::string& name : *names) {
      name = PlainModelName(name);
      if (name.empty()) errors->Add(tree, path, "a name without letters");
    }
  }
  if (models.prefixes.empty() && models.words.empty()) {
    errors->Add(tree, path, "expected names or words");
  }
  return models;
}

// Reads each item of an optional list into `out`.
template <typename Item, typename Read>
void ReadItems(YamlMap& file, const char* key, Need need, Read read,
               YamlErrors* errors, std::vector<Item>* out) {
  const YamlTree* list = file.List(key, need);
  if (list == nullptr) return;
  for (const YamlTree& item : list->children) {
    out->push_back(read(item, ItemPath(key, out->size()), errors));
  }
}

template <typename Known>
const Known* FirstOf(const std::vector<Known>& all, absl::string_view name) {
  const std::string plain = PlainModelName(name);
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Known& known) {
        return absl::StartsWith(plain, known.prefix);
      });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

absl::StatusOr<KnownModels> ParseKnownModels(absl::string_view yaml,
                                             const std::string& file_name) {
  ASSIGN_OR_RETURN(const YamlTree tree, ParseYaml(yaml, file_name));
  YamlErrors errors(file_name);
  YamlMap file(tree, "", &errors);
  KnownModels known;
  ReadItems(file, "models", Need::kRequired, ReadModel, &errors, &known.models);
  ReadItems(file, "experts", Need::kOptional, ReadKnownExperts, &errors,
            &known.experts);
  ReadItems(file, "unplannable", Need::kOptional, ReadUnplannable, &errors,
            &known.unplannable);
  file.Finish();
  RETURN_IF_ERROR(errors.status());
  return known;
}

std::string PlainModelName(absl::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      plain.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
    }
  }
  return plain;
}

const KnownModel* FindKnownModel(const KnownModels& known,
                                 absl::string_view name) {
  return FirstOf(known.models, name);
}

const KnownExperts* FindKnownExperts(const KnownModels& known,
                                     absl::string_view name) {
  return FirstOf(known.experts, name);
}

std::string UnplannableArchitecture(const KnownModels& known,
                                    absl::string_view name) {
  const std::string plain = PlainModelName(name);
  for (const UnplannableModels& models : known.unplannable) {
    const bool is_one =
        std::any_of(models.prefixes.begin(), models.prefixes.end(),
                    [&](const std::string& prefix) {
                      return absl::StartsWith(plain, prefix);
                    }) ||
        std::any_of(models.words.begin(), models.words.end(),
                    [&](const std::string& word) {
                      return absl::StrContains(plain, word);
                    });
    if (is_one) return absl::StrCat(name, " ", models.why);
  }
  return "";
}

}  // namespace millrace
