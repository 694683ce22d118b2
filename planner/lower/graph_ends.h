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
  Weight embedding;  // First stage only.
  TensorId stream;   // [S, H]
};
StageInput EmitStageInput(GraphBuilder& builder);

// Hands the gradient of `input.stream` on: to the embedding's weight or to the
// previous stage, and emits the deferred weight gradients under the transfer.
void EmitStageInputBackward(GraphBuilder& builder, const StageInput& input,
                            TensorId d_stream);

// Adds the delta and sends the stream to the next stage; for all but the last.
void EmitSendToNext(GraphBuilder& builder, const ResidualStream& stream);
// Receives its gradient.
TensorId EmitReceiveGradient(GraphBuilder& builder);

// The last stage's final norm, head and loss.
struct LossHead {
  SavedNorm norm;
  Weight weight;
  TensorId hidden;       // [T, H]
  TensorId all_stats;    // [tensor, T, 3]; -1 where the loss is one fused op.
  TensorId logits = -1;  // Workspace of the stats, where it keeps the logits.
};
// How the loss is scaled, and whether only its value is wanted.
struct LossOptions {
  double token_scale;
  bool forward_only;
};
// Forward: up to what every tensor rank must share, or to the loss if
// forward_only.
LossHead EmitLossHead(GraphBuilder& builder, const StageInput& input,
                      const ResidualStream& stream, const LossOptions& options);
// Returns the gradient of the stream.
TensorId EmitLossHeadBackward(GraphBuilder& builder, const StageInput& input,
                              const LossHead& head, const LossOptions& options);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_GRAPH_ENDS_H_
