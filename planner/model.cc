#include "planner/model.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace millrace {
namespace {

absl::Status RequirePositive(absl::string_view field, double value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model.", field, " is ", value, "; it must be above zero"));
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
      {"ffn_hidden", static_cast<double>(model.ffn_hidden)},
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
  return absl::OkStatus();
}

ParameterCounts CountParameters(const ModelSpec& model) {
  const int64_t h = model.hidden;
  const int64_t attention =
      model.qkv_width() * h + h * model.query_width();    // q, k, v and o.
  const int64_t feed_forward = 3 * model.ffn_hidden * h;  // gate, up, down.
  ParameterCounts counts;
  counts.embedding = model.vocab_size * h;
  counts.per_layer = attention + feed_forward + 2 * h;  // And two norms.
  counts.final_norm = h;
  counts.head = model.vocab_size * h;
  counts.total = counts.embedding + model.num_layers * counts.per_layer +
                 counts.final_norm + counts.head;
  return counts;
}

TokenFlops CountTokenFlops(const ModelSpec& model) {
  const ParameterCounts counts = CountParameters(model);
  TokenFlops flops;
  flops.linear = 6.0 * static_cast<double>(counts.total - counts.embedding);
  flops.attention_full = 12.0 * static_cast<double>(model.num_layers) *
                         static_cast<double>(model.query_width()) *
                         static_cast<double>(model.sequence_length);
  flops.attention_causal = flops.attention_full / 2;
  return flops;
}

}  // namespace millrace
