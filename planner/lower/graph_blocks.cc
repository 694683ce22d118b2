#include "planner/lower/graph_blocks.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

AttentionAttributes AttentionShape(const GraphBuilder& builder) {
  const StageShapes& s = builder.shapes();
  return {.num_sequences = s.num_sequences,
          .sequence_length = s.sequence_length,
          .num_heads = s.num_heads,
          .num_kv_heads = s.num_kv_heads,
          .head_dim = s.head_dim};
}

void EmitRope(GraphBuilder& builder, const std::string& name, TensorId qkv,
              Phase phase) {
  const bool inverse = phase == Phase::kInputGradient;
  AttentionAttributes attributes = AttentionShape(builder);
  attributes.rope_theta = builder.model().rope_theta;
  attributes.inverse = inverse;
  builder.Emit({.kind = OpKind::kRope,
                .phase = phase,
                .name = name,
                .attributes = attributes,
                .inputs = {qkv},
                .outputs = {qkv}});
}

// Where the input gradient still has to be summed over tensor ranks, the weight
// gradient runs under that sum. Otherwise the gradient of the stream is what
// others wait for, and the weight gradient comes after it.
void EmitOrDefer(GraphBuilder& builder, GraphOp weight_gradient) {
  if (builder.layout().tensor > 1) {
    builder.Emit(std::move(weight_gradient));
  } else {
    builder.Defer(std::move(weight_gradient));
  }
}

// Of a block's ops in this phase.
std::string BlockName(const char* block, int64_t layer, Phase phase) {
  return absl::StrCat("layers.", layer, "/", block, "/",
                      phase == Phase::kRecompute ? "recompute/" : "");
}

// The products of the block's norm, turned.
void EmitQkv(GraphBuilder& builder, Phase phase, AttentionBlock* block) {
  const std::string name = BlockName("attention", block->layer, phase);
  const TensorId input = builder.EmitTensorGather(
      absl::StrCat(name, "gather_input"), block->norm.output, phase);
  block->qkv = builder.EmitLinear(absl::StrCat(name, "qkv"), input,
                                  block->qkv_weight, phase);
  EmitRope(builder, absl::StrCat(name, "rope"), block->qkv, phase);
}

void EmitAttend(GraphBuilder& builder, Phase phase, TensorId document_starts,
                AttentionBlock* block) {
  const AttentionAttributes attributes = AttentionShape(builder);
  const std::string name = BlockName("attention", block->layer, phase);
  block->attended = builder.AddOutput(absl::StrCat(name, "attended"),
                                      OpKind::kAttentionForward, attributes, 0);
  block->lse = builder.AddOutput(absl::StrCat(name, "lse"),
                                 OpKind::kAttentionForward, attributes, 1);
  builder.Emit({.kind = OpKind::kAttentionForward,
                .phase = phase,
                .name = absl::StrCat(name, "attend"),
                .attributes = attributes,
                .inputs = {block->qkv, document_starts},
                .outputs = {block->attended, block->lse}});
}

// What is attended to, summed over tensor ranks: the block's output, to be
// added to what its norm read.
ResidualStream EmitOutput(GraphBuilder& builder, Phase phase,
                          const AttentionBlock& block) {
  const std::string name = BlockName("attention", block.layer, phase);
  const TensorId output = builder.EmitLinear(
      absl::StrCat(name, "output"), block.attended, block.output_weight, phase);
  return {.residual = block.norm.residual,
          .delta = builder.EmitTensorReduceScatter(
              absl::StrCat(name, "reduce_output"), output, phase)};
}

void EmitGateUp(GraphBuilder& builder, Phase phase, FeedForwardBlock* block) {
  const std::string name = BlockName("feed_forward", block->layer, phase);
  const TensorId input = builder.EmitTensorGather(
      absl::StrCat(name, "gather_input"), block->norm.output, phase);
  block->gate_up = builder.EmitLinear(absl::StrCat(name, "gate_up"), input,
                                      block->gate_up_weight, phase);
}

ElementwiseAttributes SwigluShape(const GraphBuilder& builder) {
  const StageShapes& s = builder.shapes();
  return {.rows = s.num_tokens, .cols = s.ffn_hidden};
}

void EmitSwiglu(GraphBuilder& builder, Phase phase, FeedForwardBlock* block) {
  const ElementwiseAttributes attributes = SwigluShape(builder);
  const std::string name = BlockName("feed_forward", block->layer, phase);
  block->activation = builder.AddOutput(absl::StrCat(name, "activation"),
                                        OpKind::kSwigluForward, attributes);
  builder.Emit({.kind = OpKind::kSwigluForward,
                .phase = phase,
                .name = absl::StrCat(name, "swiglu"),
                .attributes = attributes,
                .inputs = {block->gate_up},
                .outputs = {block->activation}});
}

SavedNorm EmitBlockNorm(GraphBuilder& builder, const char* block, int64_t layer,
                        const ResidualStream& stream, const Weight& weight,
                        Phase phase) {
  return builder.EmitNorm(absl::StrCat(BlockName(block, layer, phase), "norm"),
                          stream.residual, stream.delta, weight, phase);
}

// What of the attention block the set names, but its output.
void RecomputeAttend(GraphBuilder& builder, Recompute set,
                     TensorId document_starts, AttentionBlock* block) {
  constexpr Phase kPhase = Phase::kRecompute;
  if (Has(set, Recompute::kNorm)) {
    block->norm = EmitBlockNorm(builder, "attention", block->layer,
                                {.residual = block->norm.residual},
                                block->norm.weight, kPhase);
  }
  if (Has(set, Recompute::kQkv)) EmitQkv(builder, kPhase, block);
  if (Has(set, Recompute::kAttention)) {
    EmitAttend(builder, kPhase, document_starts, block);
  }
}

// Weight gradients that were to hide communication would only keep what they
// read alive: products that are computed again hide it as well.
void EmitDeferredBefore(GraphBuilder& builder, Recompute products) {
  if (products != Recompute::kNone) builder.EmitDeferred();
}

}  // namespace

AttentionBlock EmitAttention(GraphBuilder& builder, int64_t layer,
                             TensorId document_starts, ResidualStream* stream) {
  const StageShapes& s = builder.shapes();
  const std::string name = BlockName("attention", layer, Phase::kForward);
  const std::string parameters = absl::StrCat("model.layers.", layer, ".");
  AttentionBlock block{.layer = layer};
  block.norm.weight = builder.AddWeight(
      absl::StrCat(name, "norm"),
      absl::StrCat(parameters, "input_layernorm.weight"), 1, s.hidden);
  block.qkv_weight =
      builder.AddWeight(absl::StrCat(name, "qkv"),
                        absl::StrCat(parameters, "self_attn.q_proj.weight"),
                        s.qkv_width(), s.hidden);
  block.output_weight =
      builder.AddWeight(absl::StrCat(name, "output"),
                        absl::StrCat(parameters, "self_attn.o_proj.weight"),
                        s.hidden, s.query_width());
  block.norm = EmitBlockNorm(builder, "attention", layer, *stream,
                             block.norm.weight, Phase::kForward);
  EmitQkv(builder, Phase::kForward, &block);
  EmitAttend(builder, Phase::kForward, document_starts, &block);
  *stream = EmitOutput(builder, Phase::kForward, block);
  return block;
}

FeedForwardBlock EmitFeedForward(GraphBuilder& builder, int64_t layer,
                                 ResidualStream* stream) {
  const StageShapes& s = builder.shapes();
  const std::string name = BlockName("feed_forward", layer, Phase::kForward);
  const std::string parameters = absl::StrCat("model.layers.", layer, ".");
  FeedForwardBlock block{.layer = layer};
  block.norm.weight = builder.AddWeight(
      absl::StrCat(name, "norm"),
      absl::StrCat(parameters, "post_attention_layernorm.weight"), 1, s.hidden);
  block.gate_up_weight =
      builder.AddWeight(absl::StrCat(name, "gate_up"),
                        absl::StrCat(parameters, "mlp.gate_proj.weight"),
                        2 * s.ffn_hidden, s.hidden);
  block.down_weight = builder.AddWeight(
      absl::StrCat(name, "down"),
      absl::StrCat(parameters, "mlp.down_proj.weight"), s.hidden, s.ffn_hidden);
  block.norm = EmitBlockNorm(builder, "feed_forward", layer, *stream,
                             block.norm.weight, Phase::kForward);
  EmitGateUp(builder, Phase::kForward, &block);
  EmitSwiglu(builder, Phase::kForward, &block);
  const TensorId output =
      builder.EmitLinear(absl::StrCat(name, "down"), block.activation,
                         block.down_weight, Phase::kForward);
  stream->residual = block.norm.residual;
  stream->delta = builder.EmitTensorReduceScatter(
      absl::StrCat(name, "reduce_output"), output, Phase::kForward);
  return block;
}

void RecomputeForFeedForward(GraphBuilder& builder, Recompute set,
                             TensorId document_starts,
                             AttentionBlock* attention,
                             FeedForwardBlock* feed_forward) {
  EmitDeferredBefore(builder, set & (Recompute::kGateUp | Recompute::kOutput));
  ResidualStream stream{.residual = feed_forward->norm.residual};
  if (Has(set, Recompute::kOutput)) {
    RecomputeAttend(builder, set, document_starts, attention);
    stream = EmitOutput(builder, Phase::kRecompute, *attention);
  }
  if (Has(set, Recompute::kNorm)) {
    feed_forward->norm =
        EmitBlockNorm(builder, "feed_forward", feed_forward->layer, stream,
                      feed_forward->norm.weight, Phase::kRecompute);
  }
  if (Has(set, Recompute::kGateUp)) {
    EmitGateUp(builder, Phase::kRecompute, feed_forward);
  }
  if (Has(set, Recompute::kActivation)) {
    EmitSwiglu(builder, Phase::kRecompute, feed_forward);
  }
}

void RecomputeForAttention(GraphBuilder& builder, Recompute set,
                           TensorId document_starts, AttentionBlock* block) {
  // Else it was there when the feed-forward block needed its output.
  if (Has(set, Recompute::kOutput)) return;
  EmitDeferredBefore(builder, set & (Recompute::kQkv | Recompute::kAttention));
  RecomputeAttend(builder, set, document_starts, block);
}

TensorId EmitAttentionBackward(GraphBuilder& builder,
                               const AttentionBlock& block,
                               TensorId document_starts, TensorId d_stream) {
  const std::string name =
      absl::StrCat("layers.", block.layer, "/attention/backward/");
  const TensorId d_output =
      builder.EmitTensorGather(absl::StrCat(name, "gather_output_gradient"),
                               d_stream, Phase::kInputGradient);
  // Kept as shards since the forward pass and gathered again: a rank then holds
  // 1 / tensor of it between the passes.
  const TensorId input =
      builder.EmitTensorGather(absl::StrCat(name, "gather_input"),
                               block.norm.output, Phase::kWeightGradient);
  builder.EmitDeferred();

  const TensorId d_attended = builder.EmitInputGradient(
      absl::StrCat(name, "output"), d_output, block.output_weight);
  builder.Defer(builder.WeightGradient(absl::StrCat(name, "output_weight"),
                                       d_output, block.attended,
                                       block.output_weight));
  const AttentionAttributes attributes = AttentionShape(builder);
  const TensorId d_qkv = builder.AddOutput(
      absl::StrCat(name, "d_qkv"), OpKind::kAttentionBackward, attributes, 0);
  const TensorId workspace = builder.AddOutput(
      absl::StrCat(name, "delta"), OpKind::kAttentionBackward, attributes, 1);
  builder.Emit({.kind = OpKind::kAttentionBackward,
                .phase = Phase::kInputGradient,
                .name = absl::StrCat(name, "attend"),
                .attributes = attributes,
                .inputs = {block.qkv, document_starts, block.attended,
                           block.lse, d_attended},
                .outputs = {d_qkv, workspace}});
  EmitRope(builder, absl::StrCat(name, "rope"), d_qkv, Phase::kInputGradient);
  const TensorId d_input_full = builder.EmitInputGradient(
      absl::StrCat(name, "qkv"), d_qkv, block.qkv_weight);
  const TensorId d_input = builder.EmitTensorReduceScatter(
      absl::StrCat(name, "reduce_input_gradient"), d_input_full,
      Phase::kInputGradient);
  EmitOrDefer(builder, builder.WeightGradient(absl::StrCat(name, "qkv_weight"),
                                              d_qkv, input, block.qkv_weight));
  return builder.EmitNormBackward(absl::StrCat(name, "norm"), block.norm,
                                  d_input, d_stream);
}

TensorId EmitFeedForwardBackward(GraphBuilder& builder,
                                 const FeedForwardBlock& block,
                                 TensorId d_stream) {
  const std::string name =
      absl::StrCat("layers.", block.layer, "/feed_forward/backward/");
  const TensorId d_output =
      builder.EmitTensorGather(absl::StrCat(name, "gather_output_gradient"),
                               d_stream, Phase::kInputGradient);
  const TensorId input =
      builder.EmitTensorGather(absl::StrCat(name, "gather_input"),
                               block.norm.output, Phase::kWeightGradient);
  builder.EmitDeferred();

  const TensorId d_activation = builder.EmitInputGradient(
      absl::StrCat(name, "down"), d_output, block.down_weight);
  builder.Defer(builder.WeightGradient(absl::StrCat(name, "down_weight"),
                                       d_output, block.activation,
                                       block.down_weight));
  const ElementwiseAttributes attributes = SwigluShape(builder);
  const TensorId d_gate_up = builder.AddOutput(
      absl::StrCat(name, "d_gate_up"), OpKind::kSwigluBackward, attributes);
  builder.Emit({.kind = OpKind::kSwigluBackward,
                .phase = Phase::kInputGradient,
                .name = absl::StrCat(name, "swiglu"),
                .attributes = attributes,
                .inputs = {block.gate_up, d_activation},
                .outputs = {d_gate_up}});
  const TensorId d_input_full = builder.EmitInputGradient(
      absl::StrCat(name, "gate_up"), d_gate_up, block.gate_up_weight);
  const TensorId d_input = builder.EmitTensorReduceScatter(
      absl::StrCat(name, "reduce_input_gradient"), d_input_full,
      Phase::kInputGradient);
  EmitOrDefer(builder,
              builder.WeightGradient(absl::StrCat(name, "gate_up_weight"),
                                     d_gate_up, input, block.gate_up_weight));
  return builder.EmitNormBackward(absl::StrCat(name, "norm"), block.norm,
                                  d_input, d_stream);
}

}  // namespace millrace
