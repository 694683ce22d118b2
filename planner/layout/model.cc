#include "planner/layout/model.h"

#include <algorithm>

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

// A part of a model that is given without the key that makes it one.
absl::Status RequireWhole(absl::string_view section, absl::string_view key) {
  return absl::InvalidArgumentError(
      absl::StrCat("model.", section, ".", key, " is 0, but others of model.",
                   section, " are not; give it, or leave out model.", section));
}

absl::Status ValidateExperts(const ModelSpec& model) {
  const MixtureOfExperts& moe = model.moe;
  if (moe == MixtureOfExperts{}) return absl::OkStatus();
  if (model.linear_bias) {
    return absl::InvalidArgumentError(
        "model.linear_bias is true, and model.moe is given; experts are "
        "planned without biases, so leave out one");
  }
  if (moe.num_experts < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.moe.num_experts is ", moe.num_experts,
        "; it must be above zero, or 0 where all layers are dense"));
  }
  if (moe.num_experts == 0) return RequireWhole("moe", "num_experts");
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
                     ", since model.layers is ", model.num_layers,
                     " and a layer at least has experts"));
  }
  return absl::OkStatus();
}

// The keys of rope_scaling that a kind does not have.
absl::Status RequireOwnScaling(const ModelSpec& model) {
  const RopeScaling& scaling = model.rope_scaling;
  const RopeScalingKind kind = scaling.kind;
  const bool is_llama3 = kind == RopeScalingKind::kLlama3;
  const struct {
    const char* field;
    bool is_set, is_own;
  } keys[] = {
      {"rope_scaling.factor", scaling.factor != 0,
       is_llama3 || kind == RopeScalingKind::kLinear},
      {"rope_scaling.low_freq_factor", scaling.low_freq_factor != 0, is_llama3},
      {"rope_scaling.high_freq_factor", scaling.high_freq_factor != 0,
       is_llama3},
      {"rope_scaling.original_max_position_embeddings",
       scaling.original_max_position_embeddings != 0, is_llama3},
      {"rope_scaling.attention_factor", scaling.attention_factor != 0,
       kind == RopeScalingKind::kLongrope},
      {"rope_factors", !model.rope_factors.empty(),
       kind == RopeScalingKind::kLongrope}};
  for (const auto& [field, is_set, is_own] : keys) {
    if (!is_set || is_own) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "model.", field, " is given, but model.rope_scaling.kind is ",
        RopeScalingName(kind), ", which has none; leave out one"));
  }
  return absl::OkStatus();
}

absl::Status ValidateLongrope(const ModelSpec& model) {
  const auto num_pairs = static_cast<size_t>(
      (model.rotary_dim > 0 ? model.rotary_dim : model.head_dim) / 2);
  if (model.rope_factors.size() != num_pairs) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.rope_factors has ", model.rope_factors.size(),
                     " numbers; longrope needs ", num_pairs,
                     ", one for each pair of rotated elements of a head"));
  }
  for (const double factor : model.rope_factors) {
    RETURN_IF_ERROR(RequirePositive("rope_factors", factor));
  }
  return RequirePositive("rope_scaling.attention_factor",
                         model.rope_scaling.attention_factor);
}

absl::Status ValidateRopeScaling(const ModelSpec& model) {
  const RopeScaling& scaling = model.rope_scaling;
  RETURN_IF_ERROR(RequireOwnScaling(model));
  if (scaling.kind == RopeScalingKind::kNone) return absl::OkStatus();
  if (scaling.kind == RopeScalingKind::kLongrope) {
    return ValidateLongrope(model);
  }
  if (scaling.factor < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.rope_scaling.factor is ", scaling.factor,
                     "; it must be at least 1"));
  }
  if (scaling.kind == RopeScalingKind::kLinear) return absl::OkStatus();
  RETURN_IF_ERROR(
      RequirePositive("rope_scaling.low_freq_factor", scaling.low_freq_factor));
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.rope_scaling.high_freq_factor is ", scaling.high_freq_factor,
        "; it must be above model.rope_scaling.low_freq_factor, which is ",
        scaling.low_freq_factor));
  }
  return RequirePositive(
      "rope_scaling.original_max_position_embeddings",
      static_cast<double>(scaling.original_max_position_embeddings));
}

absl::Status RequireNotNegative(absl::string_view field, double value) {
  if (value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "model.", field, " is ", value, "; it must be above zero, or 0"));
}

// Layers without the window beside layers with it.
absl::Status ValidateGlobalLayers(const ModelSpec& model) {
  const int64_t period = model.global_layer_period;
  if (period == 0) {
    if (model.sliding_rope_theta == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "model.sliding_rope_theta is ", model.sliding_rope_theta,
        ", but model.global_layer_period is 0; all layers are then alike, so "
        "give their base as model.rope_theta"));
  }
  if (period < 2 || model.sliding_window == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.global_layer_period is ", period, ", and model.sliding_window ",
        model.sliding_window,
        "; it must be at least 2, with a window that the other layers have, "
        "or 0 where all layers are alike"));
  }
  if (model.moe.num_experts > 0) {
    return absl::InvalidArgumentError(
        "model.global_layer_period is given, and so is model.moe; layers with "
        "experts are planned alike, so leave out one");
  }
  return absl::OkStatus();
}

// Options of plain attention that latent attention has no place for.
absl::Status ValidateAttentionOptions(const ModelSpec& model) {
  const struct {
    const char* field;
    double value;
  } numbers[] = {
      {"sliding_window", static_cast<double>(model.sliding_window)},
      {"global_layer_period", static_cast<double>(model.global_layer_period)},
      {"sliding_rope_theta", model.sliding_rope_theta},
      {"rotary_dim", static_cast<double>(model.rotary_dim)},
      {"query_pre_attn_scalar", model.query_pre_attn_scalar},
      {"attention_softcap", model.attention_softcap},
      {"logit_softcap", model.logit_softcap},
  };
  for (const auto& [field, value] : numbers) {
    RETURN_IF_ERROR(RequireNotNegative(field, value));
  }
  if (model.stored_end_layers < 0 ||
      2 * model.stored_end_layers > model.num_layers ||
      (model.stored_end_layers > 0 && model.moe.num_experts > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.bf16_end_layers is ", model.stored_end_layers,
                     "; it must be from 0 to half of model.layers, which is ",
                     model.num_layers, ", and 0 where layers have experts"));
  }
  RETURN_IF_ERROR(ValidateGlobalLayers(model));
  if (model.rotary_dim > model.head_dim || model.rotary_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.rotary_dim is ", model.rotary_dim,
                     "; it must be even and at most model.head_dim, which is ",
                     model.head_dim, ", or 0 where whole heads are rotated"));
  }
  // Where only a part of a head is rotated, the rest has no factor.
  if (model.rotary_dim > 0 &&
      (model.qk_norm || model.query_pre_attn_scalar > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.rotary_dim is given, and so is model.",
        model.qk_norm ? "qk_norm" : "query_pre_attn_scalar",
        "; workers do both only where whole heads are rotated, so leave out "
        "one"));
  }
  if (model.norm_adds_one && model.norm != NormKind::kRms) {
    return absl::InvalidArgumentError(
        "model.norm_adds_one is true, but model.norm is layer; LayerNorm "
        "multiplies by its weight");
  }
  if (model.mla.kv_rank == 0) return absl::OkStatus();
  const struct {
    const char* field;
    bool is_set;
  } options[] = {
      {"qkv_bias", model.qkv_bias},
      {"linear_bias", model.linear_bias},
      {"learned_positions", model.learned_positions != 0},
      {"qk_norm", model.qk_norm},
      {"sliding_window", model.sliding_window != 0},
      {"rope_scaling", model.rope_scaling != RopeScaling{}},
      {"rotary_dim", model.rotary_dim != 0},
      {"query_pre_attn_scalar", model.query_pre_attn_scalar != 0},
      {"attention_softcap", model.attention_softcap != 0},
  };
  for (const auto& [field, is_set] : options) {
    if (!is_set) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("model.", field,
                     " is given, and so is model.mla; latent "
                     "attention is planned without it, so leave out one"));
  }
  return absl::OkStatus();
}

// The kernels of attention in 8 bits know no other masks and sizes.
absl::Status ValidateAttentionFormat(const ModelSpec& model) {
  if (model.attention_format == AttentionFormat::kAsStored) {
    return absl::OkStatus();
  }
  const auto refuse = [](const auto&... reason) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.attention is fp8, but ", reason...,
                     "; set training.attention to bf16"));
  };
  if (model.mla.kv_rank > 0) {
    return refuse(
        "model.mla is given, and latent attention has no kernel in "
        "8 bits");
  }
  if (model.head_dim != 64 && model.head_dim != 128) {
    return refuse("model.head_dim is ", model.head_dim,
                  ", and attention in 8 bits has head_dim 64 and 128");
  }
  if (model.window_share() < 1) {
    return refuse("model.sliding_window is ", model.sliding_window,
                  ", and attention in 8 bits has no window");
  }
  if (model.attention_softcap > 0) {
    return refuse("model.attention_softcap is ", model.attention_softcap,
                  ", and attention in 8 bits has no softcap");
  }
  return absl::OkStatus();
}

// Learned positions take the place of the rotation, with which heads are
// normed.
absl::Status ValidatePositions(const ModelSpec& model) {
  if (model.learned_positions == 0) return absl::OkStatus();
  if (model.learned_positions < model.sequence_length) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.learned_positions is ", model.learned_positions,
                     "; it must be at least model.sequence_length, which is ",
                     model.sequence_length, ", or 0 for rotary positions"));
  }
  const struct {
    const char* field;
    bool is_set;
  } options[] = {{"qk_norm", model.qk_norm},
                 {"rope_scaling", model.rope_scaling != RopeScaling{}},
                 {"rotary_dim", model.rotary_dim != 0},
                 {"sliding_rope_theta", model.sliding_rope_theta != 0},
                 {"query_pre_attn_scalar", model.query_pre_attn_scalar != 0}};
  for (const auto& [field, is_set] : options) {
    if (!is_set) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("model.", field,
                     " is given, and so is model.learned_positions, with "
                     "which queries and keys are not rotated; leave out one"));
  }
  return absl::OkStatus();
}

absl::Status ValidatePlainAttention(const ModelSpec& model) {
  if (model.num_heads % model.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.kv_heads is ", model.num_kv_heads,
        "; it must divide model.heads, which is ", model.num_heads,
        ", since equally many query heads share each key-value head"));
  }
  if (model.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.head_dim is ", model.head_dim,
                     "; it must be even, since rotary embedding turns pairs"));
  }
  return absl::OkStatus();
}

absl::Status ValidateLatentAttention(const ModelSpec& model) {
  const LatentAttention& mla = model.mla;
  if (mla.kv_rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.mla.kv_rank is ", mla.kv_rank,
                     "; it must be above zero, or 0 for plain attention"));
  }
  if (mla.kv_rank == 0) return RequireWhole("mla", "kv_rank");
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
        "model.kv_heads is ", model.num_kv_heads,
        "; with latent attention it must be model.heads, which is ",
        model.num_heads));
  }
  return absl::OkStatus();
}

// Whether all counts of parameters, and of bytes for each, stay far below what
// an int64_t holds: by how many matrices as large as the largest there could be
// in a layer.
absl::Status ValidateSize(const ModelSpec& model) {
  constexpr double kMatrices = 16;
  constexpr double kMostParameters = 1e16;
  const auto product = [](int64_t a, int64_t b) {
    return static_cast<double>(a) * static_cast<double>(b);
  };
  const MixtureOfExperts& moe = model.moe;
  const LatentAttention& mla = model.mla;
  const double heads_width =
      product(model.num_heads, model.head_dim + mla.value_head_dim);
  const double width = std::max(
      {static_cast<double>(model.ffn_hidden), heads_width,
       product(std::max<int64_t>(1, moe.num_experts), moe.expert_hidden),
       product(moe.num_shared_experts, moe.expert_hidden)});
  const auto input = static_cast<double>(
      std::max({model.hidden, mla.kv_rank, mla.query_rank}));
  const double most =
      kMatrices * static_cast<double>(model.num_layers) * width * input +
      2 * product(model.vocab_size, model.hidden);
  if (most < kMostParameters) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "model.hidden is ", model.hidden, ", which with model.layers ",
      model.num_layers, ", model.vocab_size ", model.vocab_size,
      " and the other widths may make ", most,
      " parameters; make them smaller, so that it is fewer than ",
      kMostParameters));
}

// Norms in front of attention and feed-forward block not counted.
int64_t AttentionParameters(const ModelSpec& model) {
  const int64_t h = model.hidden;
  const int64_t output = h * model.attended_width();
  const LatentAttention& mla = model.mla;
  if (mla.kv_rank == 0) {
    return model.qkv_width() * h + output +
           (model.qkv_bias ? model.qkv_width() : 0) +
           (model.linear_bias ? h : 0) +
           (model.qk_norm ? 2 * model.head_dim : 0);
  }
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
    case FeedForward::kGeglu:
      return "geglu";
    case FeedForward::kGeluErf:
      return "gelu_erf";
  }
  CHECK(false) << "unknown feed-forward " << static_cast<int>(kind);
  return "";
}

const char* NormKindName(NormKind kind) {
  switch (kind) {
    case NormKind::kRms:
      return "rms";
    case NormKind::kLayer:
      return "layer";
  }
  CHECK(false) << "unknown norm " << static_cast<int>(kind);
  return "";
}

const char* RopeScalingName(RopeScalingKind kind) {
  switch (kind) {
    case RopeScalingKind::kNone:
      return "none";
    case RopeScalingKind::kLlama3:
      return "llama3";
    case RopeScalingKind::kLinear:
      return "linear";
    case RopeScalingKind::kLongrope:
      return "longrope";
  }
  CHECK(false) << "unknown rope scaling " << static_cast<int>(kind);
  return "";
}

absl::Status ValidateModel(const ModelSpec& model) {
  const struct {
    absl::string_view field;
    double value;
  } positive[] = {
      {"vocab_size", static_cast<double>(model.vocab_size)},
      {"hidden", static_cast<double>(model.hidden)},
      {"layers", static_cast<double>(model.num_layers)},
      {"heads", static_cast<double>(model.num_heads)},
      {"kv_heads", static_cast<double>(model.num_kv_heads)},
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
  RETURN_IF_ERROR(model.mla == LatentAttention{}
                      ? ValidatePlainAttention(model)
                      : ValidateLatentAttention(model));
  RETURN_IF_ERROR(ValidateRopeScaling(model));
  RETURN_IF_ERROR(ValidatePositions(model));
  RETURN_IF_ERROR(ValidateAttentionOptions(model));
  RETURN_IF_ERROR(ValidateAttentionFormat(model));
  RETURN_IF_ERROR(ValidateExperts(model));
  return ValidateSize(model);
}

ParameterCounts CountParameters(const ModelSpec& model) {
  const int64_t h = model.hidden;
  const MixtureOfExperts& moe = model.moe;
  const int64_t attention =
      AttentionParameters(model) + model.num_layer_norms() * model.norm_width();
  const int64_t projections = model.num_inner_projections() + 1;  // And down.
  const int64_t expert = projections * moe.expert_hidden * h;
  const int64_t shared = moe.num_experts * h + moe.num_shared_experts * expert;
  const int64_t num_expert_layers = model.num_expert_layers();
  ParameterCounts counts{};
  counts.embedding = (model.vocab_size + model.learned_positions) * h;
  if (model.num_dense_layers() > 0) {
    counts.per_layer = attention + projections * model.ffn_hidden * h;
    if (model.linear_bias) {
      counts.per_layer += (projections - 1) * model.ffn_hidden + h;
    }
  }
  if (num_expert_layers > 0) {
    counts.per_expert_layer = attention + shared + moe.num_experts * expert;
    counts.active_per_expert_layer =
        attention + shared + moe.experts_per_token * expert;
  }
  counts.final_norm = model.norm_width();
  counts.head = model.ties_embedding ? 0 : model.vocab_size * h;
  const int64_t outside_experts = counts.embedding +
                                  model.num_dense_layers() * counts.per_layer +
                                  counts.final_norm + counts.head;
  counts.total = outside_experts + num_expert_layers * counts.per_expert_layer;
  counts.active =
      outside_experts + num_expert_layers * counts.active_per_expert_layer;
  return counts;
}

double WindowShare(int64_t window, int64_t sequence_length) {
  if (window == 0 || window >= sequence_length) return 1;
  const double outside =
      1 - static_cast<double>(window) / static_cast<double>(sequence_length);
  return 1 - outside * outside;
}

TokenFlops CountTokenFlops(const ModelSpec& model, int64_t document_length) {
  const ParameterCounts counts = CountParameters(model);
  const int64_t head = model.vocab_size * model.hidden;
  TokenFlops flops;
  flops.linear = 6.0 * static_cast<double>(counts.active - counts.embedding -
                                           counts.head + head);
  flops.attention_full =
      6.0 * static_cast<double>(model.num_layers) *
      static_cast<double>(model.query_width() + model.attended_width()) *
      static_cast<double>(model.sequence_length);
  const double global_share = static_cast<double>(model.num_global_layers()) /
                              static_cast<double>(model.num_layers);
  const int64_t length =
      document_length > 0 ? document_length : model.sequence_length;
  flops.attention_causal =
      flops.attention_full / 2 * static_cast<double>(length) /
      static_cast<double>(model.sequence_length) *
      (global_share +
       (1 - global_share) * WindowShare(model.sliding_window, length));
  return flops;
}

}  // namespace millrace
