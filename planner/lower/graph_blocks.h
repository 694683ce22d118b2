// Gives the ops of a layer (planner/graph) their names and tensors. Internal to
// planner/lower/graph*.

#ifndef MILLRACE_PLANNER_LOWER_GRAPH_BLOCKS_H_
#define MILLRACE_PLANNER_LOWER_GRAPH_BLOCKS_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "planner/graph/layer_graph.h"
#include "planner/lower/graph_builder.h"

namespace millrace {

// The residual stream between blocks: its value is residual + delta, which the
// next norm adds. No delta (-1) at the start of a stage.
struct ResidualStream {
  TensorId residual;
  TensorId delta = -1;
};

// Emits one layer. The backward pass finds the tensors that the forward pass
// left, or those that were recomputed.
class LayerEmitter {
 public:
  // Borrows `graph`, the layer's ops.
  LayerEmitter(const LayerGraph& graph, int64_t layer, TensorId document_starts)
      : graph_(&graph), layer_(layer), document_starts_(document_starts) {}

  int64_t layer() const { return layer_; }

  // Emits the forward pass and advances `stream` by the layer.
  void EmitForward(GraphBuilder& builder, ResidualStream* stream);
  // Emits what is recomputed and the backward pass. Gradient of the stream
  // after the layer -> of the stream before it, both [S, H]. Weight gradients
  // stay deferred where they can hide communication that is yet to come: the
  // caller emits the last ones.
  TensorId EmitBackward(GraphBuilder& builder, TensorId d_stream);

 private:
  // The tensors of a block that later ops read.
  struct Block {
    SavedNorm norm;
    Weight inner_weight;
    Weight inner_bias;  // Where the model has biases.
    Weight outer_weight;
    Weight outer_bias;
    Weight query_norm;  // Where the model norms queries and keys.
    Weight key_norm;
    SavedNorm output_norm;      // Where the model norms the block's output.
    TensorId input = -1;        // The norm's output, gathered.
    TensorId inner = -1;        // The inner product's; query and key rotated.
    TensorId raw = -1;          // Query and key before their norms.
    TensorId rstd = -1;         // Reciprocal deviations of these norms.
    TensorId lse = -1;          // Attention's log-sum-exps.
    TensorId outer_input = -1;  // The output of attention or the activation.
    // Under 8-bit products, copies of `input` and `outer_input`.
    Float8Copies input_copies;
    Float8Copies outer_input_copies;
    // Under attention in 8 bits, the outputs of the latest kQuantizeAttention.
    std::vector<TensorId> attention_copies;
  };
  Block& BlockOf(const LayerOp& op) {
    return blocks_[static_cast<size_t>(op.block)];
  }
  // "layers.2/attention/recompute/norm".
  std::string NameOf(const LayerOp& op, absl::string_view name) const;

  void AddWeights(GraphBuilder& builder, LayerBlock block);
  // Forward or recompute.
  void EmitForwardOp(GraphBuilder& builder, const LayerOp& op);
  // Attention, or the copies that it reads.
  void EmitAttendForward(GraphBuilder& builder, const LayerOp& op);
  // `ops` are the backward ops of one block.
  TensorId EmitBlockBackward(GraphBuilder& builder,
                             std::span<const LayerOp> ops, TensorId d_stream);
  // In place in `d_qkv`, but for the gradients of norms' weights.
  void EmitRopeBackward(GraphBuilder& builder, const LayerOp& op,
                        TensorId d_qkv);
  // The gradient of what attention or the activation read.
  TensorId EmitMiddleBackward(GraphBuilder& builder, const LayerOp& op,
                              TensorId d_output);

  const LayerGraph* graph_;
  int64_t layer_;
  TensorId document_starts_;
  std::array<Block, 2> blocks_;  // By LayerBlock.
  ResidualStream stream_{.residual = -1};
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_GRAPH_BLOCKS_H_
