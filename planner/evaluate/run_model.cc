#include "planner/evaluate/run_model.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

absl::Status FindFeedForward(const PublishedRun& run,
                             std::vector<std::string>* assumptions,
                             FeedForward* kind) {
  const std::string mlp = absl::AsciiStrToLower(run.mlp);
  if (absl::StartsWith(mlp, "swiglu")) {
    *kind = FeedForward::kSwiglu;
  } else if (absl::StartsWith(mlp, "geglu") || absl::StartsWith(mlp, "reglu")) {
    *kind = FeedForward::kSwiglu;
    assumptions->push_back(absl::StrCat("feed-forward block '", run.mlp,
                                        "' is planned as SwiGLU, whose "
                                        "products are the same"));
  } else if (absl::StartsWith(mlp, "gelu")) {
    *kind = FeedForward::kGelu;
  } else if (absl::StartsWith(mlp, "relu2") ||
             absl::StartsWith(mlp, "squared")) {
    *kind = FeedForward::kSquaredRelu;
  } else if (mlp == "relu") {
    *kind = FeedForward::kGelu;
    assumptions->push_back(
        "feed-forward block 'relu' is planned as GELU, whose products are the "
        "same");
  } else if (absl::StartsWith(mlp, "non-gated")) {
    *kind = FeedForward::kSquaredRelu;
    assumptions->push_back(
        "the feed-forward block is said to be without gate; squared ReLU, as "
        "Nemotron-4's is");
  } else if (run.mlp.empty()) {
    return NotStated("the kind of feed-forward block (arch_extra.mlp)");
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "feed-forward block '", run.mlp,
        "' is unknown; known are swiglu, gelu, relu2, relu, geglu, "
        "reglu"));
  }
  return absl::OkStatus();
}

absl::Status FindExperts(const PublishedRun& run, const KnownModels& models,
                         std::vector<std::string>* assumptions,
                         ModelSpec* model) {
  if (!run.has_moe) return absl::OkStatus();
  MixtureOfExperts& moe = model->moe;
  moe.num_experts = run.experts.value_or(0);
  if (const KnownExperts* known = FindKnownExperts(models, run.model);
      moe.num_experts == 0 && known != nullptr) {
    moe.num_experts = known->num_experts;
    assumptions->push_back(absl::StrCat("experts not stated; ",
                                        known->num_experts, ", as ",
                                        known->source, " has"));
  }
  if (moe.num_experts == 0) return NotStated("the number of experts");
  if (!run.experts_per_token) return NotStated("experts per token (topk)");
  if (!run.expert_hidden) return NotStated("the width of experts (moe_ffn)");
  moe.experts_per_token = *run.experts_per_token;
  moe.expert_hidden = *run.expert_hidden;
  moe.num_shared_experts = run.shared_experts.value_or(0);
  moe.num_dense_layers = run.dense_layers.value_or(0);
  return absl::OkStatus();
}

absl::Status FindLatentAttention(const PublishedRun& run, ModelSpec* model) {
  if (run.attention.empty()) return absl::OkStatus();
  if (run.attention != "MLA") {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention of type '", run.attention, "' is unknown; known is MLA"));
  }
  if (!run.kv_rank || !run.nope_head_dim || !run.rope_head_dim ||
      !run.value_head_dim) {
    return NotStated(
        "a width of latent attention (kv_lora, qk_nope, qk_rope "
        "or v)");
  }
  model->mla = {.kv_rank = *run.kv_rank,
                .query_rank = run.query_rank.value_or(0),
                .nope_head_dim = *run.nope_head_dim,
                .rope_head_dim = *run.rope_head_dim,
                .value_head_dim = *run.value_head_dim};
  return absl::OkStatus();
}

absl::StatusOr<ModelSpec> NamedModel(const PublishedRun& run,
                                     const KnownModel& known,
                                     std::vector<std::string>* assumptions) {
  ModelSpec model = known.model;
  model.sequence_length = *run.sequence;
  assumptions->push_back(
      absl::StrCat("dims not stated; those of ", known.source));
  if (!known.simplification.empty()) {
    assumptions->push_back(known.simplification);
  }
  struct Dim {
    const char* name;
    std::optional<int64_t> stated;
    int64_t known;
  };
  for (const Dim& dim : {Dim{"layers", run.layers, model.num_layers},
                         Dim{"heads", run.heads, model.num_heads},
                         Dim{"kv_heads", run.kv_heads, model.num_kv_heads}}) {
    if (dim.stated && *dim.stated != dim.known) {
      return absl::InvalidArgumentError(
          absl::StrCat(dim.name, " is ", *dim.stated, ", but ", known.source,
                       " has ", dim.known));
    }
  }
  RETURN_IF_ERROR(ValidateModel(model));
  return model;
}

}  // namespace

absl::Status NotStated(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, " is not stated"));
}

absl::StatusOr<ModelSpec> ModelOfRun(const PublishedRun& run,
                                     const KnownModels& known_models,
                                     const FrameworkRule& framework,
                                     std::vector<std::string>* assumptions) {
  const std::string unplannable =
      UnplannableArchitecture(known_models, run.model);
  if (!unplannable.empty()) return absl::InvalidArgumentError(unplannable);
  if (!run.sequence) return NotStated("seq");
  const KnownModel* known = FindKnownModel(known_models, run.model);
  if (!run.hidden && known != nullptr) {
    return NamedModel(run, *known, assumptions);
  }
  ModelSpec model;
  if (!run.layers) return NotStated("layers");
  if (!run.hidden) return NotStated("hidden");
  if (!run.heads || *run.heads == 0) return NotStated("heads");
  model.sequence_length = *run.sequence;
  model.num_layers = *run.layers;
  model.hidden = *run.hidden;
  model.num_heads = *run.heads;
  RETURN_IF_ERROR(FindFeedForward(run, assumptions, &model.feed_forward));
  RETURN_IF_ERROR(FindExperts(run, known_models, assumptions, &model));
  RETURN_IF_ERROR(FindLatentAttention(run, &model));
  const bool is_latent = model.mla.kv_rank > 0;
  if (!run.kv_heads && !is_latent) return NotStated("kv_heads");
  model.num_kv_heads = run.kv_heads.value_or(*run.heads);
  if (!run.head_dim && !is_latent && model.hidden % model.num_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is not stated and hidden ", model.hidden,
                     " is not divisible by heads ", model.num_heads));
  }
  model.head_dim = is_latent
                       ? model.mla.nope_head_dim + model.mla.rope_head_dim
                       : run.head_dim.value_or(model.hidden / model.num_heads);
  const bool all_experts =
      model.moe.num_experts > 0 && model.moe.num_dense_layers == 0;
  if (!run.ffn && !all_experts) return NotStated("ffn");
  model.ffn_hidden = run.ffn.value_or(model.moe.expert_hidden);
  for (const MoreLayers& more : framework.more_layers) {
    if (!absl::StartsWith(PlainModelName(run.model), more.model)) continue;
    model.num_layers += more.layers;
    assumptions->push_back(more.says);
  }
  const bool is_gpt = model.feed_forward == FeedForward::kGelu;
  if (run.vocab) {
    model.vocab_size = *run.vocab;
  } else if (is_gpt) {
    const int64_t tensor = std::max<int64_t>(run.tensor.value_or(1), 1);
    model.vocab_size = framework.vocab / tensor * tensor;
    assumptions->push_back(
        absl::StrCat("vocab not stated; ", model.vocab_size,
                     ", the framework's default here, divisible by the ranks"));
  } else {
    return NotStated("vocab");
  }
  if (is_gpt && framework.ties_embedding) {
    model.ties_embedding = true;
    assumptions->push_back(
        "the head is the embedding's transpose, Megatron's default for GPT");
  }
  RETURN_IF_ERROR(ValidateModel(model));
  return model;
}

}  // namespace millrace
