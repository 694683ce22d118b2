// A ModelSpec says which transformer is trained. Everything the planner knows
// about a model's size and arithmetic follows from it exactly.

#ifndef MILLRACE_PLANNER_MODEL_H_
#define MILLRACE_PLANNER_MODEL_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

// What the feed-forward block computes between its projections. kSwiglu has two
// inner projections, gate and up, the others one.
enum class FeedForward : uint8_t { kSwiglu, kGelu, kSquaredRelu };
const char* FeedForwardName(FeedForward kind);  // "swiglu", "gelu", "relu2".

// Layers whose feed-forward block is a mixture of experts (Shazeer et al.,
// 2017): a router sends each token to `experts_per_token` of `num_experts`.
struct MixtureOfExperts {
  int64_t num_experts = 0;  // 0: none, all layers are dense.
  int64_t experts_per_token = 0;
  int64_t expert_hidden = 0;       // Inner width of one expert.
  int64_t num_shared_experts = 0;  // Each sees every token.
  int64_t num_dense_layers = 0;    // The first ones, of ffn_hidden.
  friend bool operator==(const MixtureOfExperts&,
                         const MixtureOfExperts&) = default;
};

// Multi-head latent attention (DeepSeek-V2, 2024): keys and values are computed
// from a narrow latent vector, queries too where query_rank is set. Query and
// key heads are nope_head_dim + rope_head_dim wide.
struct LatentAttention {
  int64_t kv_rank = 0;     // 0: plain attention; the rest is then unused.
  int64_t query_rank = 0;  // 0: queries are projected directly.
  int64_t nope_head_dim = 0;
  int64_t rope_head_dim = 0;
  int64_t value_head_dim = 0;
  friend bool operator==(const LatentAttention&,
                         const LatentAttention&) = default;
};

// A pre-norm decoder. With the defaults of feed_forward, moe, mla and
// ties_embedding it is of the Llama family, which workers can train: RMSNorm,
// rotary position embedding on query and key, grouped-query attention, SwiGLU,
// no biases, untied embedding and head. Others are planned only.
struct ModelSpec {
  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // Divides num_heads.
  int64_t head_dim = 0;      // Even.
  int64_t ffn_hidden = 0;
  int64_t sequence_length = 0;  // Tokens of a training sequence.
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
  double init_std = 0.02;  // Of embedding, head and every linear weight.
  FeedForward feed_forward = FeedForward::kSwiglu;
  MixtureOfExperts moe;
  LatentAttention mla;
  bool ties_embedding = false;  // The head is the embedding's transpose.

  bool is_llama() const {
    return feed_forward == FeedForward::kSwiglu && moe.num_experts == 0 &&
           mla.kv_rank == 0 && !ties_embedding;
  }

  int64_t query_width() const { return num_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
  // Output width of the fused query-key-value projection.
  int64_t qkv_width() const { return query_width() + 2 * kv_width(); }
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// Counts of parameters (elements).
struct ParameterCounts {
  int64_t embedding;
  int64_t per_layer;
  int64_t final_norm;
  int64_t head;
  int64_t total;
};

// Floating-point operations of one training token, forward and backward
// (backward counted as twice the forward), a multiply-add as two.
struct TokenFlops {
  double linear;            // 6 x parameters outside the input embedding.
  double attention_full;    // 12 x layers x query width x sequence.
  double attention_causal;  // Half of that: what a causal kernel must do.
};

// Returns InvalidArgument naming the first field that cannot be (zero sizes,
// num_heads not divisible by num_kv_heads, odd head_dim ...).
absl::Status ValidateModel(const ModelSpec& model);

ParameterCounts CountParameters(const ModelSpec& model);
TokenFlops CountTokenFlops(const ModelSpec& model);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_MODEL_H_
