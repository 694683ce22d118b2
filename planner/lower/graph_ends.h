// Emits the ops before the first block and after the last block of a stage:
// batch, embedding, transfers, loss. Internal to planner/lower/graph*.

#ifndef MILLRACE_PLANNER_LOWER_GRAPH_ENDS_H_
#define MILLRACE_PLANNER_LOWER_GRAPH_ENDS_H_

#include <cstdint>

#include "planner/lower/graph_blocks.h"
#include "planner/lower/graph_builder.h"

namespace millrace {

struct StageInput {
  TensorId tokens;
  TensorId targets;
  TensorId document_starts;
  TensorId pair_starts = -1;  // Where preferences are trained.
  TensorId references = -1;   // Likewise.
  Weight embedding;           // First stage only.
  Weight positions;           // Likewise, where they are learned.
  TensorId stream;            // [S, H]
};
// `embedding`: the ops of the embedding, for the first stage.
StageInput EmitStageInput(GraphBuilder& builder, const LayerGraph& embedding);

// Hands the gradient of `input.stream` on: to the embedding's weight or to the
// previous stage, and emits the deferred weight gradients under the transfer.
void EmitStageInputBackward(GraphBuilder& builder, const LayerGraph& embedding,
                            const StageInput& input, TensorId d_stream);

// Adds the delta and sends the stream to the next stage; for all but the last.
void EmitSendToNext(GraphBuilder& builder, const ResidualStream& stream);
// Receives its gradient.
TensorId EmitReceiveGradient(GraphBuilder& builder);

// The last stage's final norm, head and loss.
struct LossHead {
  SavedNorm norm;
  Weight weight;
  TensorId hidden = -1;  // [T, H]
  TensorId all_stats =
      -1;                 // [tensor, T, 3]; -1 where the loss is one fused op.
  TensorId logits = -1;   // Workspace of the stats, where it keeps the logits.
  TensorId weights = -1;  // [T], of tokens, where preferences are trained.
};
// `ops` are those of GraphOfHead(). Emits the forward pass: in training up to
// what every tensor rank must share, in validation up to the loss.
LossHead EmitLossHead(GraphBuilder& builder, const LayerGraph& ops,
                      const StageInput& input, const ResidualStream& stream);
// Returns the gradient of the stream.
TensorId EmitLossHeadBackward(GraphBuilder& builder, const LayerGraph& ops,
                              const StageInput& input, const LossHead& head);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_GRAPH_ENDS_H_
