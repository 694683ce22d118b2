// The two blocks of a transformer layer. Each forward function returns what its
// backward function needs. Internal to planner/lower/graph*.

#ifndef MILLRACE_PLANNER_LOWER_GRAPH_BLOCKS_H_
#define MILLRACE_PLANNER_LOWER_GRAPH_BLOCKS_H_

#include <cstdint>

#include "planner/lower/graph_builder.h"

namespace millrace {

// The residual stream between blocks: its value is residual + delta, which the
// next norm adds. No delta (-1) at the start of a stage.
struct ResidualStream {
  TensorId residual;
  TensorId delta = -1;
};

struct AttentionBlock {
  int64_t layer;
  SavedNorm norm;
  Weight qkv_weight;
  Weight output_weight;
  TensorId qkv;  // After the rotation.
  TensorId attended;
  TensorId lse;
};

struct FeedForwardBlock {
  int64_t layer;
  SavedNorm norm;
  Weight gate_up_weight;
  Weight down_weight;
  TensorId gate_up;
  TensorId activation;
};

// Both advance `stream` by their block.
AttentionBlock EmitAttention(GraphBuilder& builder, int64_t layer,
                             TensorId document_starts, ResidualStream* stream);
FeedForwardBlock EmitFeedForward(GraphBuilder& builder, int64_t layer,
                                 ResidualStream* stream);

// Before the backward function of each block: computes again what the set names
// of what it reads, from what was kept or is made anew too, and at first from
// what the layer's first norm kept of the stream; the blocks then name the new
// tensors. What follows from attention's output is made before the feed-forward
// block, the rest of the attention block as late as can be.
void RecomputeForFeedForward(GraphBuilder& builder, Recompute set,
                             TensorId document_starts,
                             AttentionBlock* attention,
                             FeedForwardBlock* feed_forward);
void RecomputeForAttention(GraphBuilder& builder, Recompute set,
                           TensorId document_starts, AttentionBlock* block);

// Gradient of the stream after the block -> of the stream before it, both
// [S, H]. Weight gradients stay deferred where they can hide communication that
// is yet to come: the caller emits the last ones.
TensorId EmitAttentionBackward(GraphBuilder& builder,
                               const AttentionBlock& block,
                               TensorId document_starts, TensorId d_stream);
TensorId EmitFeedForwardBackward(GraphBuilder& builder,
                                 const FeedForwardBlock& block,
                                 TensorId d_stream);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_GRAPH_BLOCKS_H_
