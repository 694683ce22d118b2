#include "planner/frameworks/model_folder.h"

#include <algorithm>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "planner/frameworks/huggingface_families.h"
#include "planner/frameworks/import.h"
#include "planner/job/job_keys.h"

namespace millrace {
namespace {

std::string InFolder(const std::string& folder, absl::string_view name) {
  return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
}

// Keys of the model that its folder does not state.
bool IsTheJobs(absl::string_view path) {
  return path == "model.family" || path == "model.from" ||
         path == "model.fingerprint" || path == "model.sequence_length" ||
         path == "model.approximates";
}

absl::StatusOr<std::string> ReadConfig(const std::string& folder,
                                       const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (text.ok()) return text;
  if (!absl::IsNotFound(text.status())) {
    return absl::InvalidArgumentError(text.status().message());
  }
  std::string what = "missing; name the folder of a Hugging Face model";
  if (FileExists(InFolder(folder, "snapshots"))) {
    what = absl::StrCat(
        "missing; this is the hub's cache of a model, so name "
        "one of the folders in ",
        InFolder(folder, "snapshots"));
  } else if (!FileExists(folder)) {
    what = "the folder is not there; name that of a Hugging Face model";
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// The keys of config.json beside those of the table, for a model of the family.
nlohmann::ordered_json OwnKeysOf(const Family& family, const ModelSpec& model) {
  if (family.learns_positions) {
    return {{family.length, model.learned_positions},
            {family.ffn_hidden, model.ffn_hidden},
            {family.activation,
             model.feed_forward == FeedForward::kGeluErf ? "gelu" : "gelu_new"},
            {"tie_word_embeddings", model.ties_embedding},
            {"attn_pdrop", 0.0},
            {"embd_pdrop", 0.0},
            {"resid_pdrop", 0.0}};
  }
  const bool is_geglu = model.feed_forward == FeedForward::kGeglu;
  nlohmann::ordered_json json = {
      {family.activation, is_geglu ? "gelu_pytorch_tanh" : "silu"},
      {"rope_theta", model.rope_theta},
      {"rope_scaling", nullptr},
      {"tie_word_embeddings", model.ties_embedding},
      {"attention_dropout", 0.0}};
  if (const RopeScaling& scaling = model.rope_scaling;
      scaling.kind == RopeScalingKind::kLlama3) {
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", scaling.factor},
                            {"low_freq_factor", scaling.low_freq_factor},
                            {"high_freq_factor", scaling.high_freq_factor},
                            {"original_max_position_embeddings",
                             scaling.original_max_position_embeddings}};
  }
  if (model.rope_scaling.kind == RopeScalingKind::kLinear) {
    json["rope_scaling"] = {{"rope_type", "linear"},
                            {"factor", model.rope_scaling.factor}};
  }
  if (*family.window == '\0') return json;
  const bool has_window = model.sliding_window > 0;
  json["sliding_window"] = nullptr;
  if (has_window) json["sliding_window"] = model.sliding_window;
  if (family.window_is_optional) {
    json["use_sliding_window"] = has_window;
    json["max_window_layers"] = has_window ? 0 : model.num_layers;
  }
  if (family.global_period == 0) return json;
  json["layer_types"] = nlohmann::ordered_json::array();
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const bool is_global = !has_window || model.is_global_layer(layer);
    json["layer_types"].push_back(is_global ? "full_attention"
                                            : "sliding_attention");
  }
  json["query_pre_attn_scalar"] = model.query_pre_attn_scalar > 0
                                      ? model.query_pre_attn_scalar
                                      : static_cast<double>(model.head_dim);
  const auto cap = [](double softcap) {
    return softcap > 0 ? nlohmann::ordered_json(softcap) : nullptr;
  };
  json["attn_logit_softcapping"] = cap(model.attention_softcap);
  json["final_logit_softcapping"] = cap(model.logit_softcap);
  if (*family.sliding_theta != '\0') {
    json["rope_local_base_freq"] = model.sliding_rope_theta > 0
                                       ? model.sliding_rope_theta
                                       : model.rope_theta;
  }
  return json;
}

// Whether the family's architecture computes what the model's options say.
bool HasOptionsOf(const Family& family, const ModelSpec& model) {
  const bool has_table = model.learned_positions > 0;
  // Tables of positions come with heads that share the stream out.
  const bool fits_table =
      !has_table || (model.num_kv_heads == model.num_heads &&
                     model.query_width() == model.hidden);
  const auto has_experts_or_latents = [](const FrameworkKey& key) {
    return absl::StartsWith(key.job_path, "model.moe") ||
           absl::StartsWith(key.job_path, "model.mla");
  };
  const FeedForward feed_forward = model.feed_forward == FeedForward::kGeluErf
                                       ? FeedForward::kGelu
                                       : model.feed_forward;
  const bool is_scaled_alike =
      model.rope_scaling.kind != RopeScalingKind::kLongrope &&
      model.rotary_dim == 0;
  const bool has_gemmas =
      family.norm_adds_one == model.norm_adds_one &&
      family.output_norms == model.output_norms &&
      family.scales_embedding == model.scales_embedding &&
      (family.global_period > 0 ||
       (model.global_layer_period == 0 && model.query_pre_attn_scalar == 0 &&
        model.attention_softcap == 0 && model.logit_softcap == 0)) &&
      (model.sliding_rope_theta == 0 || *family.sliding_theta != '\0');
  return *family.approximation == '\0' && is_scaled_alike && has_gemmas &&
         family.feed_forward == feed_forward && model.moe.num_experts == 0 &&
         model.mla.kv_rank == 0 &&
         std::ranges::none_of(family.keys, has_experts_or_latents) &&
         family.qkv_bias == model.qkv_bias &&
         family.linear_bias == model.linear_bias &&
         family.qk_norm == model.qk_norm && family.norm == model.norm &&
         family.learns_positions == has_table && fits_table &&
         (model.sliding_window == 0 || *family.window != '\0');
}

// The family's key for this value of a job, or the one that most families have;
// null if the family has none.
const std::string* KeyOf(const Family& family, const FrameworkKey& common) {
  for (const FrameworkKey& own : family.keys) {
    if (absl::string_view(own.job_path) == common.job_path) return &own.name;
  }
  // OwnKeysOf() has these keys, or they follow from others.
  for (const char* path :
       {"model.ffn_hidden", "model.sequence_length", "model.head_dim"}) {
    if (family.learns_positions && absl::string_view(path) == common.job_path) {
      return nullptr;
    }
  }
  return &common.name;
}

absl::StatusOr<Settings> ReadFolderSettings(const std::string& folder,
                                            const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadConfig(folder, path));
  return HuggingFaceAdapter()->read(text, path);
}

absl::StatusOr<ImportedJob> ImportExactly(
    const Settings& settings, std::optional<int64_t> sequence_length) {
  return ImportJob(HuggingFaceAdapter(), settings,
                   {.sequence_length = sequence_length, .is_exact = true});
}

}  // namespace

absl::StatusOr<ModelSpec> ReadModelOfFolder(const std::string& folder) {
  ASSIGN_OR_RETURN(const Settings settings,
                   ReadFolderSettings(folder, InFolder(folder, kModelConfig)));
  ASSIGN_OR_RETURN(const ImportedJob imported,
                   ImportExactly(settings, std::nullopt));
  return imported.job.model;
}

absl::StatusOr<FolderModel> ReadModelFolder(
    const std::string& folder, std::optional<int64_t> sequence_length) {
  const std::string path = InFolder(folder, kModelConfig);
  ASSIGN_OR_RETURN(const Settings settings, ReadFolderSettings(folder, path));
  ASSIGN_OR_RETURN(const ImportedJob imported,
                   ImportExactly(settings, sequence_length));
  FolderModel model;
  for (const JobKey& key : JobKeys()) {
    if (!absl::StartsWith(key.path, "model.") || IsTheJobs(key.path)) continue;
    // Settings that config.json leaves out follow from the family.
    const auto remark = imported.remarks.find(key.path);
    const std::string source =
        remark == imported.remarks.end() ? "model_type" : remark->second;
    const Setting* setting = settings.Find(source);
    model[key.path] = {
        .value = JobValueToYaml(key, imported.job),
        .place = setting == nullptr
                     ? absl::StrCat(path, " (", source, ")")
                     : absl::StrCat(path, ":", setting->line, ": ", source)};
  }
  return model;
}

std::span<const char* const> CarriedFiles() {
  static constexpr const char* kFiles[] = {
      "added_tokens.json",
      "chat_template.jinja",
      "chat_template.json",
      "generation_config.json",
      "merges.txt",
      "special_tokens_map.json",
      "tokenizer.json",
      "tokenizer.model",
      "tokenizer_config.json",
      "vocab.json",
  };
  return kFiles;
}

absl::StatusOr<std::string> WriteModelConfig(const ModelSpec& model,
                                             absl::string_view torch_dtype) {
  const std::span<const Family> families = HuggingFaceFamilies();
  const auto family = std::ranges::find_if(
      families, [&](const Family& f) { return HasOptionsOf(f, model); });
  if (family == families.end()) {
    return absl::InvalidArgumentError(
        "no known family of Hugging Face models has all options of this "
        "model together (qkv_bias, linear_bias, qk_norm, norm, "
        "learned_positions, sliding_window, global_layer_period, "
        "sliding_rope_theta, rotary_dim, rope_scaling, norm_adds_one, "
        "output_norms, scales_embedding, query_pre_attn_scalar, softcaps, "
        "feed_forward, moe, mla); export it as plain safetensors");
  }
  nlohmann::ordered_json json = {{"architectures", {family->architecture}},
                                 {"model_type", family->type},
                                 {"torch_dtype", std::string(torch_dtype)}};
  JobSpec job{.model = model};
  for (const FrameworkKey& key : HuggingFaceKeys()) {
    const std::string* name = KeyOf(*family, key);
    if (name == nullptr) continue;
    const JobField field = FindJobKey(key.job_path)->field(job);
    if (const auto* integer = std::get_if<int64_t*>(&field)) {
      json[*name] = **integer;
    } else {
      json[*name] = *std::get<double*>(field);
    }
  }
  json.update(OwnKeysOf(*family, model));
  return absl::StrCat(JsonText(json, 2), "\n");
}

absl::StatusOr<TensorNaming> NamingOfConfig(absl::string_view config,
                                            const std::string& path) {
  const absl::StatusOr<nlohmann::json> json = ParseJsonOnce(config);
  if (!json.ok() || !json->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ",
        json.ok() ? "expected an object" : json.status().message()));
  }
  const auto type = json->find("model_type");
  for (const Family& family : HuggingFaceFamilies()) {
    if (type != json->end() && *type == family.type) return family.naming;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": model_type is missing, or of no known family"));
}

absl::StatusOr<std::string> ChangeConfigType(absl::string_view config,
                                             const std::string& path,
                                             absl::string_view torch_dtype) {
  absl::StatusOr<nlohmann::ordered_json> json = ParseOrderedJson(config);
  if (!json.ok() || !json->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ",
        json.ok() ? "expected an object" : json.status().message()));
  }
  // Transformers 5 writes dtype and reads both.
  const char* key = json->contains("dtype") ? "dtype" : "torch_dtype";
  (*json)[key] = std::string(torch_dtype);
  return absl::StrCat(JsonText(*json, 2), "\n");
}

absl::StatusOr<JobSpec> LoadJobWithFolder(const std::string& path) {
  return LoadJob(path, ReadModelFolder);
}

}  // namespace millrace
