#include "planner/lower/graph_ends.h"

#include <string>
#include <variant>

#include "base/check.h"

namespace millrace {
namespace {

TransferAttributes StreamTransfer(const GraphBuilder& builder,
                                  Direction direction) {
  const StageShapes& s = builder.shapes();
  return {.direction = direction,
          .num_elements = s.shard_tokens * s.hidden,
          .dtype = builder.activation_type()};
}

// stats [1, T, 3] of this rank -> those of all tensor ranks, [tensor, T, 3].
TensorId GatherStats(GraphBuilder& builder, const LayerOp& op, TensorId stats) {
  const TensorId all_stats = builder.AddTensor(
      "head/all_stats",
      {builder.layout().tensor, builder.shapes().num_tokens, 3},
      DType::kFloat32);
  builder.Emit("head/gather_stats", op, {stats}, {all_stats});
  return all_stats;
}

// Returns the weights of tokens. The answers' log-probabilities of a validation
// pass go to all replicas.
TensorId EmitPreferenceLoss(GraphBuilder& builder, const LayerOp& op,
                            const StageInput& input, TensorId all_stats) {
  const PersistentLayout& persistent = builder.graph().persistent;
  const int32_t num_replicas = builder.layout().data;
  const TensorId weights = builder.AddOutput("head/weights", op, 0);
  const TensorId log_probabilities =
      persistent.answers >= 0 && num_replicas == 1
          ? persistent.answers
          : builder.AddOutput("head/log_probabilities", op, 1);
  builder.Emit("head/loss_of_pairs", op,
               {input.targets, input.document_starts, input.pair_starts,
                input.references, all_stats},
               {weights, log_probabilities, persistent.scalars});
  if (persistent.answers >= 0 && num_replicas > 1) {
    builder.Emit(
        {.kind = OpKind::kAllGather,
         .phase = Phase::kForward,
         .name = "head/gather_answers",
         .attributes =
             CollectiveAttributes{
                 .group = Group::kData,
                 .num_elements = num_replicas * builder.shapes().num_tokens,
                 .dtype = DType::kFloat32},
         .inputs = {log_probabilities},
         .outputs = {persistent.answers}});
  }
  return weights;
}

// Returns the gradient of the head's input.
TensorId EmitLossGradient(GraphBuilder& builder, const LayerOp& op,
                          const StageInput& input, const LossHead& head) {
  const TensorId d_hidden = builder.AddOutput("head/d_hidden", op, 0);
  const TensorId workspace =
      head.logits >= 0 ? head.logits
                       : builder.AddOutput("head/loss_workspace", op, 3);
  GraphOp& loss =
      builder.Emit("head/loss", op,
                   {head.hidden, head.weight.backward_parameter, input.targets},
                   {d_hidden, head.weight.gradient,
                    builder.graph().persistent.scalars, workspace});
  if (!builder.embedding_is_head()) {
    loss.completes_bucket = builder.BucketIndex("head");
  }
  if (head.all_stats >= 0) loss.inputs.push_back(head.all_stats);
  if (head.logits >= 0) loss.inputs.push_back(head.logits);
  if (head.weights >= 0) loss.inputs.push_back(head.weights);
  return d_hidden;
}

}  // namespace

StageInput EmitStageInput(GraphBuilder& builder, const LayerGraph& embedding) {
  const StageShapes& s = builder.shapes();
  StageInput input;
  input.tokens = builder.AddTensor("tokens", {s.num_tokens}, DType::kInt32);
  input.targets = builder.AddTensor("targets", {s.num_tokens}, DType::kInt32);
  input.document_starts =
      builder.AddTensor("document_starts", {s.num_tokens}, DType::kInt32);
  GraphOp& load = builder.Emit(
      {.kind = OpKind::kLoadBatch,
       .phase = Phase::kForward,
       .name = "load_batch",
       .attributes = ElementwiseAttributes{.rows = s.num_sequences,
                                           .cols = s.sequence_length},
       .outputs = {input.tokens, input.targets, input.document_starts}});
  if (builder.layout().trains_preferences()) {
    input.pair_starts =
        builder.AddTensor("pair_starts", {s.num_tokens}, DType::kInt32);
    input.references =
        builder.AddTensor("references", {s.num_tokens}, DType::kFloat32);
    load.outputs.push_back(input.pair_starts);
    load.outputs.push_back(input.references);
  }
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
  for (const LayerOp& op : embedding.ops) {
    if (op.phase != Phase::kForward) continue;
    if (op.kind == OpKind::kEmbeddingForward) {
      input.stream = builder.AddOutput("embedding/output", op, 0);
      builder.Emit("embedding", op, {input.tokens, input.embedding.parameter},
                   {input.stream});
    } else if (op.kind == OpKind::kPositionForward) {
      input.positions =
          builder.AddWeight("positions", "model.embed_positions.weight",
                            s.position_rows, s.hidden);
      builder.Emit("positions", op, {input.stream, input.positions.parameter},
                   {input.stream});
    } else {
      input.stream = builder.EmitTensorReduceScatter("embedding/reduce_output",
                                                     op, input.stream);
    }
  }
  return input;
}

void EmitStageInputBackward(GraphBuilder& builder, const LayerGraph& embedding,
                            const StageInput& input, TensorId d_stream) {
  if (!builder.is_first_stage()) {
    builder.Emit({.kind = OpKind::kSend,
                  .phase = Phase::kInputGradient,
                  .name = "send_input_gradient",
                  .attributes = StreamTransfer(builder, Direction::kToPrevious),
                  .inputs = {d_stream}});
    builder.EmitDeferred();
    return;
  }
  for (const LayerOp& op : embedding.ops) {
    if (op.phase == Phase::kForward) continue;
    if (op.kind == OpKind::kEmbeddingBackward) {
      builder.EmitDeferred();  // Unless held.
      GraphOp& backward =
          builder.Emit("embedding/backward", op, {input.tokens, d_stream},
                       {input.embedding.gradient});
      backward.completes_bucket = builder.BucketIndex("embedding");
      backward.adds_always = builder.embedding_is_head();
    } else if (op.kind == OpKind::kPositionBackward) {
      builder
          .Emit("positions/backward", op, {d_stream},
                {input.positions.gradient})
          .completes_bucket = builder.BucketIndex("positions");
    } else {
      d_stream = builder.EmitTensorGather(
          "embedding/backward/gather_output_gradient", op, d_stream);
    }
  }
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

LossHead EmitLossHead(GraphBuilder& builder, const LayerGraph& ops,
                      const StageInput& input, const ResidualStream& stream) {
  const StageShapes& s = builder.shapes();
  const ModelSpec& model = builder.model();
  const SavedNorm norm = builder.AddNormWeights("final_norm", "model.norm");
  LossHead head;
  for (const LayerOp& op : ops.ops) {
    if (op.phase != Phase::kForward) break;
    switch (op.kind) {
      case OpKind::kResidualRmsNormForward:
      case OpKind::kResidualLayerNormForward:
        head.norm = builder.EmitNorm("final_norm", op, stream.residual,
                                     stream.delta, norm);
        head.weight = builder.embedding_is_head()
                          ? input.embedding
                          : builder.AddWeight("head", model.head_name(),
                                              s.vocab_rows, s.hidden);
        head.hidden = head.norm.output;
        break;
      case OpKind::kAllGather:
        if (op.step == LayerStep::kGather) {
          head.hidden =
              builder.EmitTensorGather("head/gather_input", op, head.hidden);
        } else {
          head.all_stats = GatherStats(builder, op, head.all_stats);
        }
        break;
      case OpKind::kCrossEntropyStats: {
        head.all_stats = builder.AddTensor("head/stats", {1, s.num_tokens, 3},
                                           DType::kFloat32);
        const TensorId logits =
            builder.AddOutput("head/stats_workspace", op, 1);
        if (std::get<VocabAttributes>(op.attributes).keeps_logits) {
          head.logits = logits;
        }
        builder.Emit("head/stats", op,
                     {head.hidden, head.weight.parameter, input.targets},
                     {head.all_stats, logits});
        break;
      }
      case OpKind::kPreferenceLoss:
        head.weights = EmitPreferenceLoss(builder, op, input, head.all_stats);
        break;
      case OpKind::kCrossEntropyLoss:
        builder.Emit("head/loss", op, {input.targets, head.all_stats},
                     {builder.graph().persistent.scalars});
        break;
      default:
        CHECK(false) << "no worker runs " << OpKindName(op.kind);
    }
  }
  return head;
}

TensorId EmitLossHeadBackward(GraphBuilder& builder, const LayerGraph& ops,
                              const StageInput& input, const LossHead& head) {
  TensorId gradient = -1;
  for (const LayerOp& op : ops.ops) {
    if (op.phase == Phase::kForward) continue;
    switch (op.kind) {
      case OpKind::kLinearCrossEntropy:
      case OpKind::kCrossEntropyGradient:
        gradient = EmitLossGradient(builder, op, input, head);
        break;
      case OpKind::kReduceScatter:
        gradient = builder.EmitTensorReduceScatter("head/reduce_input_gradient",
                                                   op, gradient);
        break;
      case OpKind::kRmsNormBackward:
      case OpKind::kLayerNormBackward:
        gradient = builder.EmitNormBackward("final_norm/backward", op,
                                            head.norm, gradient, -1);
        break;
      default:
        CHECK(false) << "no worker runs " << OpKindName(op.kind);
    }
  }
  return gradient;
}

}  // namespace millrace
