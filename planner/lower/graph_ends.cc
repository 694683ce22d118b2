#include "planner/lower/graph_ends.h"

#include <string>
#include <utility>

#include "base/check.h"

namespace millrace {
namespace {

VocabAttributes EmbeddingShape(const StageShapes& s, bool accumulate) {
  return {.num_tokens = s.num_tokens,
          .hidden = s.hidden,
          .vocab_rows = s.vocab_rows,
          .accumulate = accumulate};
}

VocabAttributes LossShape(const GraphBuilder& builder,
                          const LossOptions& options) {
  const StageShapes& s = builder.shapes();
  return {.num_tokens = s.num_tokens,
          .hidden = s.hidden,
          .vocab_rows = s.vocab_rows,
          .chunk_tokens = ChunkTokens(builder.layout().precision, s.num_tokens,
                                      s.vocab_rows),
          .token_scale = options.token_scale,
          // Every tensor rank adds the loss of all tokens.
          .loss_share = 1.0 / builder.layout().tensor};
}

TransferAttributes StreamTransfer(const GraphBuilder& builder,
                                  Direction direction) {
  const StageShapes& s = builder.shapes();
  return {.direction = direction,
          .num_elements = s.shard_tokens * s.hidden,
          .dtype = builder.activation_type()};
}

// Worth their memory where the backward pass follows and one chunk is all.
bool KeepsLogits(const GraphBuilder& builder, const LossOptions& options,
                 const VocabAttributes& loss) {
  return builder.layout().precision == Precision::kBfloat16 &&
         builder.layout().tensor > 1 && !options.forward_only &&
         loss.chunk_tokens >= loss.num_tokens;
}

// stats [T, 3] of this rank -> those of all tensor ranks, [tensor, T, 3].
void EmitStats(GraphBuilder& builder, const StageInput& input,
               const LossOptions& options, LossHead* head) {
  const StageShapes& s = builder.shapes();
  const int64_t tensor = builder.layout().tensor;
  VocabAttributes loss = LossShape(builder, options);
  loss.keeps_logits = KeepsLogits(builder, options, loss);
  const TensorId stats =
      builder.AddTensor("head/stats", {1, s.num_tokens, 3}, DType::kFloat32);
  const TensorId workspace = builder.AddOutput(
      "head/stats_workspace", OpKind::kCrossEntropyStats, loss, 1);
  if (loss.keeps_logits) head->logits = workspace;
  builder.Emit({.kind = OpKind::kCrossEntropyStats,
                .phase = Phase::kForward,
                .name = "head/stats",
                .attributes = loss,
                .inputs = {head->hidden, head->weight.parameter, input.targets},
                .outputs = {stats, workspace}});
  head->all_stats = stats;
  if (tensor == 1) return;
  head->all_stats = builder.AddTensor(
      "head/all_stats", {tensor, s.num_tokens, 3}, DType::kFloat32);
  builder.Emit(
      {.kind = OpKind::kAllGather,
       .phase = Phase::kForward,
       .name = "head/gather_stats",
       .attributes =
           CollectiveAttributes{.group = Group::kTensor,
                                .num_elements = tensor * s.num_tokens * 3,
                                .dtype = DType::kFloat32},
       .inputs = {stats},
       .outputs = {head->all_stats}});
}

}  // namespace

StageInput EmitStageInput(GraphBuilder& builder) {
  const StageShapes& s = builder.shapes();
  StageInput input;
  input.tokens = builder.AddTensor("tokens", {s.num_tokens}, DType::kInt32);
  input.targets = builder.AddTensor("targets", {s.num_tokens}, DType::kInt32);
  input.document_starts =
      builder.AddTensor("document_starts", {s.num_tokens}, DType::kInt32);
  builder.Emit(
      {.kind = OpKind::kLoadBatch,
       .phase = Phase::kForward,
       .name = "load_batch",
       .attributes = ElementwiseAttributes{.rows = s.num_sequences,
                                           .cols = s.sequence_length},
       .outputs = {input.tokens, input.targets, input.document_starts}});
  if (!builder.is_first_stage()) {
    input.stream = builder.AddTensor("stage_input", {s.shard_tokens, s.hidden});
    builder.Emit({.kind = OpKind::kReceive,
                  .phase = Phase::kForward,
                  .name = "receive_input",
                  .attributes = StreamTransfer(builder, Direction::kToNext),
                  .outputs = {input.stream}});
    return input;
  }
  input.embedding = builder.AddWeight("embedding", "model.embed_tokens.weight",
                                      s.vocab_rows, s.hidden);
  const TensorId embedded =
      builder.AddTensor("embedding/output", {s.num_tokens, s.hidden});
  builder.Emit({.kind = OpKind::kEmbeddingForward,
                .phase = Phase::kForward,
                .name = "embedding",
                .attributes = EmbeddingShape(s, false),
                .inputs = {input.tokens, input.embedding.parameter},
                .outputs = {embedded}});
  input.stream = builder.EmitTensorReduceScatter("embedding/reduce_output",
                                                 embedded, Phase::kForward);
  return input;
}

void EmitStageInputBackward(GraphBuilder& builder, const StageInput& input,
                            TensorId d_stream) {
  const StageShapes& s = builder.shapes();
  if (!builder.is_first_stage()) {
    builder.Emit({.kind = OpKind::kSend,
                  .phase = Phase::kInputGradient,
                  .name = "send_input_gradient",
                  .attributes = StreamTransfer(builder, Direction::kToPrevious),
                  .inputs = {d_stream}});
    builder.EmitDeferred();
    return;
  }
  const TensorId d_embedded =
      builder.EmitTensorGather("embedding/backward/gather_output_gradient",
                               d_stream, Phase::kInputGradient);
  builder.EmitDeferred();  // Unless held.
  builder.Emit({.kind = OpKind::kEmbeddingBackward,
                .phase = Phase::kWeightGradient,
                .name = "embedding/backward",
                .attributes = EmbeddingShape(s, builder.accumulates_in_place()),
                .inputs = {input.tokens, d_embedded},
                .outputs = {input.embedding.gradient},
                .completes_bucket = builder.BucketIndex("embedding")});
  builder.ReleaseDeferred();
}

void EmitSendToNext(GraphBuilder& builder, const ResidualStream& stream) {
  const StageShapes& s = builder.shapes();
  CHECK(stream.delta >= 0);
  const TensorId output =
      builder.AddTensor("stage_output", {s.shard_tokens, s.hidden});
  builder.Emit({.kind = OpKind::kAdd,
                .phase = Phase::kForward,
                .name = "add_residual",
                .attributes = ElementwiseAttributes{.rows = s.shard_tokens,
                                                    .cols = s.hidden},
                .inputs = {stream.residual, stream.delta},
                .outputs = {output}});
  builder.Emit({.kind = OpKind::kSend,
                .phase = Phase::kForward,
                .name = "send_output",
                .attributes = StreamTransfer(builder, Direction::kToNext),
                .inputs = {output}});
}

TensorId EmitReceiveGradient(GraphBuilder& builder) {
  const StageShapes& s = builder.shapes();
  const TensorId d_output =
      builder.AddTensor("stage_output_gradient", {s.shard_tokens, s.hidden});
  builder.Emit({.kind = OpKind::kReceive,
                .phase = Phase::kInputGradient,
                .name = "receive_output_gradient",
                .attributes = StreamTransfer(builder, Direction::kToPrevious),
                .outputs = {d_output}});
  return d_output;
}

LossHead EmitLossHead(GraphBuilder& builder, const StageInput& input,
                      const ResidualStream& stream,
                      const LossOptions& options) {
  const StageShapes& s = builder.shapes();
  LossHead head{.all_stats = -1};
  head.norm = builder.EmitNorm(
      "final_norm", stream.residual, stream.delta,
      builder.AddWeight("final_norm", "model.norm.weight", 1, s.hidden),
      Phase::kForward);
  head.weight =
      builder.AddWeight("head", "lm_head.weight", s.vocab_rows, s.hidden);
  head.hidden = builder.EmitTensorGather("head/gather_input", head.norm.output,
                                         Phase::kForward);
  if (builder.layout().tensor == 1 && !options.forward_only) return head;
  EmitStats(builder, input, options, &head);
  if (options.forward_only) {
    builder.Emit({.kind = OpKind::kCrossEntropyLoss,
                  .phase = Phase::kForward,
                  .name = "head/loss",
                  .attributes = LossShape(builder, options),
                  .inputs = {input.targets, head.all_stats},
                  .outputs = {builder.graph().persistent.scalars}});
  }
  return head;
}

TensorId EmitLossHeadBackward(GraphBuilder& builder, const StageInput& input,
                              const LossHead& head,
                              const LossOptions& options) {
  VocabAttributes attributes = LossShape(builder, options);
  attributes.accumulate = builder.accumulates_in_place();
  attributes.keeps_logits = head.logits >= 0;
  const OpKind kind = head.all_stats >= 0 ? OpKind::kCrossEntropyGradient
                                          : OpKind::kLinearCrossEntropy;
  const TensorId d_hidden =
      builder.AddOutput("head/d_hidden", kind, attributes, 0);
  const TensorId workspace =
      head.logits >= 0
          ? head.logits
          : builder.AddOutput("head/loss_workspace", kind, attributes, 3);
  GraphOp op{
      .kind = kind,
      .phase = Phase::kInputGradient,
      .name = "head/loss",
      .attributes = attributes,
      .inputs = {head.hidden, head.weight.backward_parameter, input.targets},
      .outputs = {d_hidden, head.weight.gradient,
                  builder.graph().persistent.scalars, workspace},
      .completes_bucket = builder.BucketIndex("head")};
  if (head.all_stats >= 0) {
    op.inputs.push_back(head.all_stats);
    if (head.logits >= 0) op.inputs.push_back(head.logits);
  }
  builder.Emit(std::move(op));
  const TensorId d_output = builder.EmitTensorReduceScatter(
      "head/reduce_input_gradient", d_hidden, Phase::kInputGradient);
  return builder.EmitNormBackward("final_norm/backward", head.norm, d_output,
                                  -1);
}

}  // namespace millrace
