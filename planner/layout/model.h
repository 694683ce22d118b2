// A ModelSpec says which transformer is trained. Everything the planner knows
// about a model's size and arithmetic follows from it exactly.

#ifndef MILLRACE_PLANNER_LAYOUT_MODEL_H_
#define MILLRACE_PLANNER_LAYOUT_MODEL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace millrace {

// The function between the feed-forward block's projections. kSwiglu and kGeglu
// have two inner projections, gate and up, the others one. kGelu and kGeglu
// have GELU in its tanh form, kGeluErf has the exact one.
enum class FeedForward : uint8_t {
  kSwiglu,
  kGelu,
  kSquaredRelu,
  kGeglu,
  kGeluErf
};
// "swiglu", "gelu", "relu2", "geglu", "gelu_erf".
const char* FeedForwardName(FeedForward kind);

// The norm in front of each block and of the head. kRms has a weight, kLayer a
// weight and a bias.
enum class NormKind : uint8_t { kRms, kLayer };
const char* NormKindName(NormKind kind);  // "rms", "layer".

// Attention's forward pass reads query, key and value as they are stored, or
// copies of them in 8 bits. The backward pass reads them as stored.
enum class AttentionFormat : uint8_t { kAsStored, kFloat8 };

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
// key heads are nope_head_dim + rope_head_dim wide, which head_dim repeats, and
// every head has a key and a value of its own (num_kv_heads is num_heads). The
// rope part of the key is one for all heads.
struct LatentAttention {
  int64_t kv_rank = 0;     // 0: plain attention; the rest is then unused.
  int64_t query_rank = 0;  // 0: queries are projected directly.
  int64_t nope_head_dim = 0;
  int64_t rope_head_dim = 0;
  int64_t value_head_dim = 0;
  friend bool operator==(const LatentAttention&,
                         const LatentAttention&) = default;
};

// How rotary positions are stretched to sequences longer than those that the
// model saw first. kLlama3 (Llama 3.1, 2024) scales each frequency by its
// wavelength in tokens: one shorter than original / high_freq_factor is kept,
// one longer than original / low_freq_factor is divided by `factor`, and
// between the two they are blended linearly in original / wavelength. kLinear
// divides all frequencies by `factor`. kLongrope (LongRoPE, 2024) divides each
// by a factor of its own, ModelSpec::rope_factors, and multiplies what is
// rotated by attention_factor.
enum class RopeScalingKind : uint8_t { kNone, kLlama3, kLinear, kLongrope };
// "none", "llama3", "linear", "longrope".
const char* RopeScalingName(RopeScalingKind kind);

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  // The rest is zero where the kind does not name it, and above zero where it
  // does.
  double factor = 0;            // kLlama3 and kLinear. At least one.
  double low_freq_factor = 0;   // kLlama3, as are the next two.
  double high_freq_factor = 0;  // Above low_freq_factor.
  int64_t original_max_position_embeddings = 0;
  double attention_factor = 0;  // kLongrope.
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// The share of causal attention's pairs of tokens that are within a window of
// so many tokens; 0: no window.
double WindowShare(int64_t window, int64_t sequence_length);

// A pre-norm decoder. With the defaults of all options it is of the Llama
// family up to Llama 3.0: RMSNorm, rotary position embedding on query and key,
// grouped-query attention, SwiGLU, no biases, untied embedding and head.
// Another family is a row of other options (docs/job.md).
struct ModelSpec {
  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;     // Divides num_heads.
  int64_t head_dim = 0;         // Even in plain attention.
  int64_t ffn_hidden = 0;       // Not needed where all layers have experts.
  int64_t sequence_length = 0;  // Tokens of a training sequence.
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  // Rows of a table of positions that is added to the embedding. Positions are
  // then learned and queries and keys are not rotated. 0: rotary positions.
  int64_t learned_positions = 0;
  NormKind norm = NormKind::kRms;
  double norm_epsilon = 1e-5;
  double init_std = 0.02;  // For embedding, head and every linear weight.
  FeedForward feed_forward = FeedForward::kSwiglu;
  MixtureOfExperts moe;
  LatentAttention mla;
  bool ties_embedding = false;  // The head is the embedding's transpose.
  bool qkv_bias = false;        // Biases of the query, key and value products.
  // Biases of attention's output product and of the feed-forward block's
  // products.
  bool linear_bias = false;
  // RMSNorm, with a weight of head_dim, of each query head and each key head
  // before their rotation.
  bool qk_norm = false;
  // Tokens that a token attends to, itself the last of them; 0: all before it.
  int64_t sliding_window = 0;
  // Every so many-th layer attends to all tokens before it, without the window.
  // 0: none does.
  int64_t global_layer_period = 0;
  // The rotary base of layers with the window, which are then not scaled; 0:
  // rope_theta and the scaling of the other layers.
  double sliding_rope_theta = 0;
  // Elements at the start of each head that are rotated; 0: all of them.
  int64_t rotary_dim = 0;
  // kLongrope: what divides the frequency of each pair of rotated elements.
  std::vector<double> rope_factors;
  // RMSNorms multiply by 1 + weight instead of the weight.
  bool norm_adds_one = false;
  // Norms also of both blocks' outputs, before they are added to the stream.
  bool output_norms = false;
  // The embedding's rows are multiplied by sqrt(hidden).
  bool scales_embedding = false;
  // Scores are divided by the square root of this; 0: of head_dim.
  double query_pre_attn_scalar = 0;
  // So many first and so many last layers multiply what is stored, whatever
  // Layout::gemm_format and attention_format say (training.bf16_end_layers).
  int64_t stored_end_layers = 0;
  // In all other layers (training.attention). kFloat8: head_dim 64 or 128, and
  // every token attends to all before it in its document, without a softcap.
  AttentionFormat attention_format = AttentionFormat::kAsStored;
  // Scores x, and logits x, become cap tanh(x / cap); 0: they stay.
  double attention_softcap = 0;
  double logit_softcap = 0;

  // The name of the head's weight among the parameters.
  const char* head_name() const {
    return ties_embedding ? "model.embed_tokens.weight" : "lm_head.weight";
  }

  bool is_llama() const {
    return feed_forward == FeedForward::kSwiglu && moe.num_experts == 0 &&
           mla.kv_rank == 0 && !ties_embedding && !qkv_bias && !linear_bias &&
           !qk_norm && sliding_window == 0 && learned_positions == 0 &&
           norm == NormKind::kRms &&
           rope_scaling.kind == RopeScalingKind::kNone && rotary_dim == 0 &&
           !norm_adds_one && !output_norms && !scales_embedding &&
           query_pre_attn_scalar == 0 && attention_softcap == 0 &&
           logit_softcap == 0;
  }
  bool has_rotary_positions() const { return learned_positions == 0; }

  int64_t query_width() const { return num_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
  // Output width of the fused query-key-value projection.
  int64_t qkv_width() const { return query_width() + 2 * kv_width(); }
  int64_t value_head_dim() const {
    return mla.kv_rank > 0 ? mla.value_head_dim : head_dim;
  }
  // Input width of attention's output projection.
  int64_t attended_width() const { return num_heads * value_head_dim(); }
  int64_t num_dense_layers() const {
    return moe.num_experts > 0 ? moe.num_dense_layers : num_layers;
  }
  int64_t num_expert_layers() const { return num_layers - num_dense_layers(); }
  // Whether a layer attends to all before it although others have a window.
  bool is_global_layer(int64_t layer) const {
    return global_layer_period > 0 && (layer + 1) % global_layer_period == 0;
  }
  bool is_stored_layer(int64_t layer) const {
    return layer < stored_end_layers || layer >= num_layers - stored_end_layers;
  }
  // Counts dense layers only.
  int64_t num_global_layers() const {
    return global_layer_period > 0 ? num_layers / global_layer_period : 0;
  }
  double window_share() const {
    return WindowShare(sliding_window, sequence_length);
  }
  // Norms of a layer's stream and of its blocks' outputs.
  int64_t num_layer_norms() const { return output_norms ? 4 : 2; }
  // Elements of one norm of the stream.
  int64_t norm_width() const {
    return norm == NormKind::kLayer ? 2 * hidden : hidden;
  }
  // Projections from hidden to the inner width of a feed-forward block.
  int64_t num_inner_projections() const {
    return feed_forward == FeedForward::kSwiglu ||
                   feed_forward == FeedForward::kGeglu
               ? 2
               : 1;
  }
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// Counts of parameters (elements): matrices, norms and biases.
struct ParameterCounts {
  int64_t embedding;                // With learned positions.
  int64_t per_layer;                // Dense; 0 if there is none.
  int64_t per_expert_layer;         // 0 if there is none.
  int64_t active_per_expert_layer;  // The part of these that one token meets.
  int64_t final_norm;
  int64_t head;  // 0 where the embedding serves as head.
  int64_t total;
  int64_t active;  // The part of these that one token meets.
};

// Floating-point operations of one training token, forward and backward
// (backward counted as twice the forward), a multiply-add as two.
struct TokenFlops {
  double linear;          // 6 x active parameters but the input embedding.
  double attention_full;  // 6 x layers x (query + value width) x sequence.
  // The work of a causal kernel: half of that, and less with a window or with
  // several documents in a sequence.
  double attention_causal;
};

// Returns InvalidArgument that starts with the first field that cannot be, as
// job files call it: zero sizes, heads not divisible by kv_heads, odd head_dim,
// more experts a token than experts, moe or mla given without what makes it
// one, widths of more parameters than can be counted.
absl::Status ValidateModel(const ModelSpec& model);

ParameterCounts CountParameters(const ModelSpec& model);
// `document_length` is Layout's.
TokenFlops CountTokenFlops(const ModelSpec& model, int64_t document_length = 0);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LAYOUT_MODEL_H_
