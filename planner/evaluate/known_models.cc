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

// Reads the name's letters and digits. There must be at least one.
void ReadName(YamlMap& map, std::string* prefix) {
  std::string name;
  if (!map.Text("name", Need::kRequired, &name)) return;
  *prefix = PlainModelName(name);
  if (prefix->empty()) map.Error("name", "expected letters or digits");
}

void ReadExperts(YamlMap& map, MixtureOfExperts* moe) {
  map.Integer("experts", Need::kRequired, 1, &moe->num_experts);
  map.Integer("topk", Need::kRequired, 1, &moe->experts_per_token);
  map.Integer("moe_ffn", Need::kRequired, 1, &moe->expert_hidden);
  map.Integer("shared", Need::kOptional, 0, &moe->num_shared_experts);
  map.Integer("dense_layers", Need::kOptional, 0, &moe->num_dense_layers);
}

void ReadLatentAttention(YamlMap& map, LatentAttention* mla) {
  std::string type;
  if (map.Text("type", Need::kRequired, &type) && type != "MLA") {
    map.Error("type", absl::StrCat("expected MLA, found '", type, "'"));
  }
  map.Integer("q_lora", Need::kOptional, 0, &mla->query_rank);
  map.Integer("kv_lora", Need::kRequired, 1, &mla->kv_rank);
  map.Integer("qk_nope", Need::kRequired, 1, &mla->nope_head_dim);
  map.Integer("qk_rope", Need::kRequired, 1, &mla->rope_head_dim);
  map.Integer("v", Need::kRequired, 1, &mla->value_head_dim);
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

void ReadDims(YamlMap& dims, ModelSpec* model) {
  dims.Integer("vocab", Need::kRequired, 1, &model->vocab_size);
  dims.Integer("hidden", Need::kRequired, 1, &model->hidden);
  dims.Integer("layers", Need::kRequired, 1, &model->num_layers);
  dims.Integer("heads", Need::kRequired, 1, &model->num_heads);
  dims.Integer("kv_heads", Need::kRequired, 1, &model->num_kv_heads);
  dims.Integer("ffn", Need::kRequired, 1, &model->ffn_hidden);
  dims.Choice<FeedForward>("mlp", Need::kRequired,
                           {{"swiglu", FeedForward::kSwiglu},
                            {"gelu", FeedForward::kGelu},
                            {"relu2", FeedForward::kSquaredRelu}},
                           &model->feed_forward);
  dims.Flag("ties_embedding", Need::kOptional, &model->ties_embedding);
  dims.Section("moe", Need::kOptional,
               [&](YamlMap& map) { ReadExperts(map, &model->moe); });
  dims.Section("attn", Need::kOptional,
               [&](YamlMap& map) { ReadLatentAttention(map, &model->mla); });
  ReadHeadDim(dims, model);
  if (dims.has_errors()) return;  // ValidateModel would repeat them.
  ModelSpec whole = *model;
  whole.sequence_length = 1;
  const absl::Status valid = ValidateModel(whole);
  if (!valid.ok()) dims.Error("", valid.message());
}

void ReadModel(YamlMap& map, KnownModel* known) {
  ReadName(map, &known->prefix);
  map.Text("source", Need::kRequired, &known->source);
  map.Text("simplification", Need::kOptional, &known->simplification);
  map.Section("dims", Need::kRequired,
              [&](YamlMap& dims) { ReadDims(dims, &known->model); });
}

void ReadKnownExperts(YamlMap& map, KnownExperts* known) {
  ReadName(map, &known->prefix);
  map.Text("source", Need::kRequired, &known->source);
  map.Integer("experts", Need::kRequired, 1, &known->num_experts);
}

void ReadUnplannable(YamlMap& map, UnplannableModels* models) {
  map.Words("names", Need::kOptional, &models->prefixes);
  map.Words("words", Need::kOptional, &models->words);
  map.Text("why", Need::kRequired, &models->why);
  for (std::vector<std::string>* names : {&models->prefixes, &models->words}) {
    for (std::string& name : *names) {
      name = PlainModelName(name);
      if (name.empty()) map.Error("", "a name without letters");
    }
  }
  if (models->prefixes.empty() && models->words.empty()) {
    map.Error("", "expected names or words");
  }
}

template <typename Known>
const Known* FirstOf(const std::vector<Known>& all, absl::string_view name) {
  const std::string plain = PlainModelName(name);
  const auto found = std::ranges::find_if(all, [&](const Known& known) {
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
  const auto read_into = [](auto& items, auto read) {
    return [&items, read](YamlMap& map) { read(map, &items.emplace_back()); };
  };
  file.Items("models", Need::kRequired, read_into(known.models, ReadModel));
  file.Items("experts", Need::kOptional,
             read_into(known.experts, ReadKnownExperts));
  file.Items("unplannable", Need::kOptional,
             read_into(known.unplannable, ReadUnplannable));
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
        std::ranges::any_of(models.prefixes,
                            [&](const std::string& prefix) {
                              return absl::StartsWith(plain, prefix);
                            }) ||
        std::ranges::any_of(models.words, [&](const std::string& word) {
          return absl::StrContains(plain, word);
        });
    if (is_one) return absl::StrCat(name, " ", models.why);
  }
  return "";
}

}  // namespace millrace
