// What one rank computes, moves and keeps for one layer of any model that can
// be planned, executable or not: the arithmetic under planner/step_model.h.

#ifndef MILLRACE_PLANNER_LAYER_WORK_H_
#define MILLRACE_PLANNER_LAYER_WORK_H_

#include <cstdint>
#include <vector>

#include "planner/layout.h"
#include "planner/model.h"

namespace millrace {

// How a framework computes, where frameworks differ in what a layer costs.
struct Implementation {
  // Attention without the matrix of scores in memory (FlashAttention). False:
  // the scores of all pairs are written, read by softmax and dropout, and kept.
  bool flash_attention = true;
  // Norms, activations, rotary embedding in one pass each.
  bool fused_elementwise = true;
  bool dropout = false;
  // Norms and residuals on a tensor rank's share of the tokens (Korthikanti et
  // al., 2022); false: on all of them, with all-reduces instead.
  bool sequence_parallel = true;
  // What is hidden under computation where that is possible: reductions and
  // gathers of the data axis, gathers and scatters of the tensor axis,
  // transfers between stages, exchanges of tokens between experts.
  bool overlaps_data = true;
  bool overlaps_tensor = true;
  bool overlaps_transfers = true;
  bool overlaps_experts = false;
  int32_t gradient_bytes = 4;  // Of an element, kept and reduced.
};

enum class LayerKind : uint8_t { kDense, kExperts };

enum class WorkPhase : uint8_t {
  kForward,
  kRecompute,  // In the backward pass, before the gradients of the layer.
  kInputGradient,
  kWeightGradient,
};

// Over which ranks a collective or exchange runs.
enum class CommAxis : uint8_t { kTensor, kContext, kExpert };
enum class CommKind : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kRing,  // Each rank passes its part round to all others (context axis).
};

// c[m, n] = a[m, k] b[k, n], `count` of them in one launch (grouped).
struct GemmWork {
  WorkPhase phase;
  int64_t m, n, k;
  int64_t count = 1;
  bool low_precision = true;  // Whether GemmFormat applies (not to the router).
};
// Attention of `num_sequences` x `num_heads` independent problems.
struct AttentionWork {
  WorkPhase phase;  // kInputGradient: the whole backward pass.
  int64_t num_sequences;
  int64_t num_heads, num_kv_heads;
  int64_t query_tokens;  // Of this rank; less than key_tokens under context.
  int64_t key_tokens;
  int64_t head_dim, value_head_dim;
  double causal_share = 0.5;  // Of the query-key pairs that are computed.
  bool flash = true;
};
// An op bound by memory: norms, activations, rotary, casts, permutations.
struct BandwidthWork {
  WorkPhase phase;
  double bytes;      // Read and written.
  int32_t launches;  // Kernels.
};
struct CommWork {
  WorkPhase phase;
  CommAxis axis;
  CommKind kind;
  double bytes;  // Of the full (gathered, unreduced, exchanged) tensor.
};

// Bytes that one micro-batch's forward pass leaves for the backward pass.
struct LayerWork {
  std::vector<GemmWork> gemms;
  std::vector<AttentionWork> attention;
  std::vector<BandwidthWork> bandwidth;
  std::vector<CommWork> comm;
  int64_t activation_bytes = 0;
  // The largest that lives only while the layer is computed (or recomputed).
  int64_t working_bytes = 0;
};

// Elements of parameters of one rank: those that the whole data x context axis
// replicates, and those of experts, replicated over its part that `expert`
// leaves.
struct RankParameters {
  double dense = 0;
  double experts = 0;
};

// Work of one rank for one micro-batch of one layer. `layout` must pass
// ValidatePlannedLayout.
LayerWork WorkOfLayer(const ModelSpec& model, const Layout& layout,
                      LayerKind kind, const Implementation& implementation);
// The embedding, and the final norm with the head and the loss.
LayerWork WorkOfEmbedding(const ModelSpec& model, const Layout& layout,
                          const Implementation& implementation);
LayerWork WorkOfHead(const ModelSpec& model, const Layout& layout,
                     const Implementation& implementation);

RankParameters ParametersOfLayer(const ModelSpec& model, const Layout& layout,
                                 LayerKind kind);
RankParameters ParametersOfEmbedding(const ModelSpec& model,
                                     const Layout& layout);
RankParameters ParametersOfHead(const ModelSpec& model, const Layout& layout);

// ValidateLayout's rules for layouts and models that may be planned only:
// InvalidArgument with the reason and the smallest change that would help.
absl::Status ValidatePlannedLayout(const ModelSpec& model, const Layout& layout,
                                   int64_t global_batch);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LAYER_WORK_H_
