// The parameters that one rank has of a layer, the rules for layouts that can
// be planned, and the work that CostModel prices.

#ifndef MILLRACE_PLANNER_COST_LAYER_WORK_H_
#define MILLRACE_PLANNER_COST_LAYER_WORK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "planner/graph/layer_graph.h"
#include "planner/graph/style.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"

namespace millrace {

enum class WorkPhase : uint8_t {
  kForward,
  kRecompute,  // In the backward pass, before the gradients of the layer.
  kInputGradient,
  kWeightGradient,
};

// Over which ranks a collective or exchange runs. kExpert: the `expert` ranks
// that share the experts of a layer. They lie over the tensor axis first (if
// experts are whole), then context, then data.
enum class CommAxis : uint8_t { kTensor, kContext, kExpert };
enum class CommKind : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kRing,  // Each rank passes its part round to all others (context axis).
};

// c[m, n] = a[m, k] b[k, n], `count` of them in one launch (grouped). m is the
// tokens; of weight gradients it is n that was, and k is the tokens, as in
// planner/program/ops.h. Tokens of experts are spread evenly, rounded up.
struct GemmWork {
  WorkPhase phase = WorkPhase::kForward;
  int64_t m, n, k;
  int64_t count = 1;
  bool low_precision = true;  // Whether GemmFormat applies (router, head: not).
  int64_t launches = 1;       // Kernels.
  bool in_graph = false;      // Launched with others, as a CUDA graph.
};
// Attention of `num_sequences` x `num_heads` independent problems.
struct AttentionWork {
  // kInputGradient: the whole backward pass.
  WorkPhase phase = WorkPhase::kForward;
  int64_t num_sequences;
  int64_t num_heads, num_kv_heads;
  int64_t query_tokens;  // Of this rank; less than key_tokens under context.
  int64_t key_tokens;
  int64_t head_dim, value_head_dim;
  double causal_share = 0.5;  // Of the query-key pairs that are computed.
  bool flash = true;
  bool in_graph = false;
};
// An op bound by memory: norms, activations, rotary, casts, permutations.
struct BandwidthWork {
  WorkPhase phase;
  double bytes;      // Read and written.
  int32_t launches;  // Kernels.
  bool in_graph = false;
};
struct CommWork {
  WorkPhase phase;
  CommAxis axis;
  CommKind kind;
  // Bytes of the full tensor: gathered, unreduced, passed round by all ranks
  // together. kAllToAll: the bytes that one rank gives all ranks, itself
  // included, a row for each expert.
  double bytes;
  // kAllToAll: experts that a row is for, if it crosses a level of the network
  // once for all of them in a domain; 0: each goes its own way.
  int64_t experts_per_row = 0;
};

// Elements of parameters of one rank: those that the whole data x context axis
// replicates, and those of experts, of which data x context x tensor / (expert
// x expert_tensor) ranks have the same.
struct RankParameters {
  double dense = 0;
  double experts = 0;
};

RankParameters ParametersOfLayer(const ModelSpec& model, const Layout& layout,
                                 LayerKind kind);
RankParameters ParametersOfEmbedding(const ModelSpec& model,
                                     const Layout& layout);
RankParameters ParametersOfHead(const ModelSpec& model, const Layout& layout);

// What passes visit in this order: chunk c is on stage c % pipeline. One chunk
// a stage: StageLayers. Several: equal numbers of layers where pipeline x
// interleave divides them; else one layer more for some, the inner chunks
// first, the latest first, so that those with embedding and head have fewer.
std::vector<LayerRange> ChunkLayers(const ModelSpec& model,
                                    const Layout& layout,
                                    const Implementation& implementation);

// Ranks that hold the same experts: data x context x tensor / (expert x
// expert_tensor).
int32_t NumExpertReplicas(const Layout& layout);

// ValidateLayout's rules for layouts and models that may be planned only:
// InvalidArgument with the reason and the smallest change that would help.
absl::Status ValidatePlannedLayout(const ModelSpec& model, const Layout& layout,
                                   int64_t global_batch);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_LAYER_WORK_H_
