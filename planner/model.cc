#include "planner/model.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

absl::Status RequirePositive(absl::string_view field, double value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model.", field, " is ", value, "; it must be above zero"));
}

absl::Status ValidateExperts(const ModelSpec& model) {
  const MixtureOfExperts& moe = model.moe;
  RETURN_IF_ERROR(RequirePositive("moe.experts_per_token",
                                  static_cast<double>(moe.experts_per_token)));
  RETURN_IF_ERROR(RequirePositive("moe.expert_hidden",
                                  static_cast<double>(moe.expert_hidden)));
  if (moe.experts_per_token > moe.num_experts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.moe.experts_per_token is ", moe.experts_per_token,
        ", but model.moe.num_experts is ", moe.num_experts,
        "; a token goes to as many experts as there are or fewer"));
  }
  if (moe.num_shared_experts < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.moe.num_shared_experts is ", moe.num_shared_experts,
                     "; it must not be negative"));
  }
  if (moe.num_dense_layers < 0 || moe.num_dense_layers >= model.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.moe.num_dense_layers is ", moe.num_dense_layers,
                     "; it must be from 0 to ", model.num_layers - 1,
                     ", since model.num_layers is ", model.num_layers,
                     " and a layer at least has experts"));
  }
  return absl::OkStatus();
}

absl::Status ValidateLatentAttention(const ModelSpec& model) {
  const LatentAttention& mla = model.mla;
  RETURN_IF_ERROR(RequirePositive("mla.nope_head_dim",
                                  static_cast<double>(mla.nope_head_dim)));
  RETURN_IF_ERROR(RequirePositive("mla.rope_head_dim",
                                  static_cast<double>(mla.rope_head_dim)));
  RETURN_IF_ERROR(RequirePositive("mla.value_head_dim",
                                  static_cast<double>(mla.value_head_dim)));
  if (mla.query_rank < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.mla.query_rank is ", mla.query_rank,
        "; it must be above zero, or 0 where queries are projected directly"));
  }
  if (mla.rope_head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.mla.rope_head_dim is ", mla.rope_head_dim,
                     "; it must be even, since rotary embedding turns pairs"));
  }
  if (model.head_dim != mla.nope_head_dim + mla.rope_head_dim) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.head_dim is ", model.head_dim,
        "; with latent attention it must be model.mla.nope_head_dim + "
        "model.mla.rope_head_dim, which is ",
        mla.nope_head_dim + mla.rope_head_dim));
  }
  if (model.num_kv_heads != model.num_heads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.num_kv_heads is ", model.num_kv_heads,
        "; with latent attention it must be model.num_heads, which is ",
        model.num_heads));
  }
  return absl::OkStatus();
}

// Norms in front of attention and feed-forward block not counted.
int64_t AttentionParameters(const ModelSpec& model) {
  const int64_t h = model.hidden;
  const int64_t output = h * model.attended_width();
  const LatentAttention& mla = model.mla;
  if (mla.kv_rank == 0) return model.qkv_width() * h + output;
  const int64_t query =
      mla.query_rank == 0
          ? model.query_width() * h
          : mla.query_rank * (h + 1 + model.query_width());  // And its norm.
  const int64_t key_value =
      (mla.kv_rank + mla.rope_head_dim) * h + mla.kv_rank +
      mla.kv_rank * model.num_heads * (mla.nope_head_dim + mla.value_head_dim);
  return query + key_value + output;
}

}  // namespace

const char* FeedForwardName(FeedForward kind) {
  switch (kind) {
    case FeedForward::kSwiglu:
      return "swiglu";
    case FeedForward::kGelu:
      return "gelu";
    case FeedForward::kSquaredRelu:
      return "relu2";
  }
  CHECK(false) << "unknown feed-forward " << static_cast<int>(kind);
  return "";
}

absl::Status ValidateModel(const ModelSpec& model) {
  const struct {
    absl::string_view field;
    double value;
  } positive[] = {
      {"vocab_size", static_cast<double>(model.vocab_size)},
      {"hidden", static_cast<double>(model.hidden)},
      {"num_layers", static_cast<double>(model.num_layers)},
      {"num_heads", static_cast<double>(model.num_heads)},
      {"num_kv_heads", static_cast<double>(model.num_kv_heads)},
      {"head_dim", static_cast<double>(model.head_dim)},
      {"ffn_hidden", model.num_dense_layers() > 0
                         ? static_cast<double>(model.ffn_hidden)
                         : 1.0},
      {"sequence_length", static_cast<double>(model.sequence_length)},
      {"rope_theta", model.rope_theta},
      {"norm_epsilon", model.norm_epsilon},
      {"init_std", model.init_std},
  };
  for (const auto& [field, value] : positive) {
    absl::Status status = RequirePositive(field, value);
    if (!status.ok()) return status;
  }
  if (model.num_heads % model.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.num_kv_heads is ", model.num_kv_heads,
        "; it must divide model.num_heads, which is ", model.num_heads,
        ", since equally many query heads share each key-value head"));
  }
  if (model.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.head_dim is ", model.head_dim,
                     "; it must be even, since rotary embedding turns pairs"));
  }
  if (model.moe.num_experts < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.moe.num_experts is ", model.moe.num_experts,
        "; it must be above zero, or 0 where all layers are dense"));
  }
  if (model.moe.num_experts > 0) RETURN_IF_ERROR(ValidateExperts(model));
  if (model.mla.kv_rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.mla.kv_rank is ", model.mla.kv_rank,
                     "; it must be above zero, or 0 for plain attention"));
  }
  if (model.mla.kv_rank > 0) return ValidateLatentAttention(model);
  return absl::OkStatus();
}

ParameterCounts CountParameters(const ModelSpec& model) {
  const int64_t h = model.hidden;
  const MixtureOfExperts& moe = model.moe;
  const int64_t attention = AttentionParameters(model) + 2 * h;   // Both norms.
  const int64_t projections = model.num_inner_projections() + 1;  // And down.
  const int64_t expert = projections * moe.expert_hidden * h;
  const int64_t shared = moe.num_experts * h + moe.num_shared_experts * expert;
  const int64_t num_expert_layers = model.num_expert_layers();
  ParameterCounts counts{};
  counts.embedding = model.vocab_size * h;
  if (model.num_dense_layers() > 0) {
    counts.per_layer = attention + projections * model.ffn_hidden * h;
  }
  if (num_expert_layers > 0) {
    counts.per_expert_layer = attention + shared + moe.num_experts * expert;
    counts.active_per_expert_layer =
        attention + shared + moe.experts_per_token * expert;
  }
  counts.final_norm = h;
  counts.head = model.ties_embedding ? 0 : model.vocab_size * h;
  const int64_t outside_experts = counts.embedding +
                                  model.num_dense_layers() * counts.per_layer +
                                  counts.final_norm + counts.head;
  counts.total = outside_experts + num_expert_layers * counts.per_expert_layer;
  counts.active =
      outside_experts + num_expert_layers * counts.active_per_expert_layer;
  return counts;
}

TokenFlops CountTokenFlops(const ModelSpec& model) {
  const ParameterCounts counts = CountParameters(model);
  const int64_t head = model.vocab_size * model.hidden;
  TokenFlops flops;
  flops.linear = 6.0 * static_cast<double>(counts.active - counts.embedding -
                                           counts.head + head);
  flops.attention_full =
      6.0 * static_cast<double>(model.num_layers) *
      static_cast<double>(model.query_width() + model.attended_width()) *
      static_cast<double>(model.sequence_length);
  flops.attention_causal = flops.attention_full / 2;
  return flops;
}

}  // namespace millrace
