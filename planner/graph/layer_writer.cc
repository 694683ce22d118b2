#include "planner/graph/layer_writer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace millrace {
namespace {

// Reads and writes of an element-wise op where each of its steps is a kernel of
// its own, as a multiple of one pass: casts to fp32 and back, and temporaries.
constexpr double kUnfusedPasses = 2.5;
constexpr int32_t kUnfusedLaunches = 4;

// The factor on rotated elements. Queries and keys both have it, so scores have
// its square.
double RotaryScale(const ModelSpec& model, const RopeScaling& scaling) {
  double scale =
      scaling.kind == RopeScalingKind::kLongrope ? scaling.attention_factor : 1;
  // Attention itself divides scores by sqrt(head_dim).
  if (model.query_pre_attn_scalar > 0) {
    scale *=
        std::pow(AsDouble(model.head_dim) / model.query_pre_attn_scalar, 0.25);
  }
  return scale;
}

// The ops of an activation that workers execute.
struct ActivationOps {
  OpKind forward, backward;
};
ActivationOps ActivationOpsOf(FeedForward kind) {
  switch (kind) {
    case FeedForward::kSwiglu:
      return {OpKind::kSwigluForward, OpKind::kSwigluBackward};
    case FeedForward::kGeglu:
      return {OpKind::kGegluForward, OpKind::kGegluBackward};
    case FeedForward::kGelu:
    case FeedForward::kGeluErf:
      return {OpKind::kGeluForward, OpKind::kGeluBackward};
    case FeedForward::kSquaredRelu:
      break;
  }
  return {OpKind::kElementwise, OpKind::kElementwise};
}

}  // namespace

LayerWriter::LayerWriter(const ModelSpec& model, const Layout& layout,
                         const Implementation& style)
    : model_(model),
      layout_(layout),
      style_(style),
      tokens_(layout.micro_batch * model.sequence_length / layout.context),
      shard_tokens_(tokens_ / layout.tensor),
      norm_tokens_(style.sequence_parallel ? shard_tokens_ : tokens_),
      activation_type_(ActivationType(layout.precision)),
      element_bytes_(static_cast<double>(DTypeBytes(activation_type_))) {
  constexpr size_t kForwardAndRecompute = 64, kOthers = 48;
  graph_.ops.reserve(kForwardAndRecompute);
  backward_.reserve(kOthers);
  if (layout.recompute != Recompute::kNone) recompute_.reserve(kOthers);
}

bool LayerWriter::IsRecomputed(Piece piece) const {
  const Recompute set = layout_.recompute;
  if (set == Recompute::kNone) return false;
  if (set == Recompute::kPolicy) return IsInPolicy(piece);
  if (set == Recompute::kFull) {
    return piece != Piece::kLast || style_.recomputes_whole_layer;
  }
  switch (piece) {
    case Piece::kNorm:
      return Has(set, Recompute::kNorm);
    case Piece::kActivation:
    case Piece::kExpertActivation:
      return Has(set, Recompute::kActivation);
    case Piece::kQkv:
    case Piece::kRotary:
    case Piece::kLatentProjection:
      return Has(set, Recompute::kQkv);
    case Piece::kAttention:
    case Piece::kAttended:
      return Has(set, Recompute::kAttention);
    case Piece::kGateUp:
    case Piece::kExpertProducts:
      return Has(set, Recompute::kGateUp);
    case Piece::kOutput:
    case Piece::kOutputSum:
      return Has(set, Recompute::kOutput);
    case Piece::kExperts:
      return Has(set, Recompute::kDispatch);
    case Piece::kProduct:
    case Piece::kSecondProduct:
    case Piece::kLast:
      return false;
  }
  CHECK(false) << "unknown piece " << static_cast<int>(piece);
  return false;
}

bool LayerWriter::IsInPolicy(Piece piece) const {
  const SelectiveRecompute& selective = style_.selective;
  switch (piece) {
    case Piece::kNorm:
      return selective.norms;
    case Piece::kActivation:
      return selective.activation;
    case Piece::kExpertActivation:
      return selective.activation || selective.experts;
    case Piece::kAttention:
      return selective.attention;
    case Piece::kLatentProjection:
      return selective.latent_projections;
    case Piece::kExperts:
    case Piece::kExpertProducts:
      return selective.experts;
    case Piece::kRotary:
    case Piece::kOutput:
    case Piece::kSecondProduct:
      return selective.every_second_product;
    case Piece::kAttended:
    case Piece::kQkv:
    case Piece::kGateUp:
    case Piece::kOutputSum:
    case Piece::kProduct:
    case Piece::kLast:
      return false;
  }
  CHECK(false) << "unknown piece " << static_cast<int>(piece);
  return false;
}

bool LayerWriter::in_graph() const {
  return (part_ == LayerPart::kAttention && style_.graphs_attention) ||
         (part_ == LayerPart::kRouter && style_.graphs_router);
}

void LayerWriter::BeginBlock(LayerBlock block) {
  block_ = block;
  part_ = LayerPart::kOther;
  feed_forward_recompute_ = recompute_.size();
  feed_forward_backward_ = backward_.size();
}

LayerOp LayerWriter::MakeOp(Phase phase, OpKind kind,
                            const OpAttributes& attributes,
                            int32_t launches) const {
  return {.kind = kind,
          .phase = phase,
          .block = block_,
          .step = step_,
          .in_graph = in_graph(),
          .launches = launches,
          .attributes = attributes};
}

void LayerWriter::Forward(Piece piece, OpKind kind,
                          const OpAttributes& attributes, int32_t launches) {
  graph_.ops.push_back(MakeOp(Phase::kForward, kind, attributes, launches));
  if (!IsRecomputed(piece)) return;
  recompute_.push_back(MakeOp(Phase::kRecompute, kind, attributes, launches));
}

void LayerWriter::Backward(Phase phase, OpKind kind,
                           const OpAttributes& attributes, int32_t launches) {
  backward_.push_back(MakeOp(phase, kind, attributes, launches));
}

void LayerWriter::Product(Piece piece, const LinearShape& shape) {
  const bool low_precision = quantizes() && shape.low_precision;
  const bool is_of_experts = part_ == LayerPart::kExperts;
  const auto launches = static_cast<int32_t>(
      is_of_experts && !style_.fuses_experts ? shape.count : 1);
  const GemmFormat format =
      low_precision ? layout_.gemm_format : GemmFormat::kAsStored;
  const bool by_op = low_precision && quantizes_by_op();
  const OpKind kind = by_op           ? float8_product()
                      : is_of_experts ? OpKind::kGroupedGemm
                      : low_precision ? OpKind::kScaledGemm
                                      : OpKind::kGemm;
  const auto attributes = [&](const GemmAttributes& gemm) -> OpAttributes {
    if (kind == OpKind::kGemm || by_op) return gemm;
    return GroupedGemmAttributes{.m = gemm.m,
                                 .n = gemm.n,
                                 .k = gemm.k,
                                 .count = shape.count,
                                 .format = format,
                                 .trans_a = gemm.trans_a,
                                 .trans_b = gemm.trans_b};
  };
  const auto [tokens, out, in, count, is_low, has_bias] = shape;
  // Over the tensor axis, outer products give parts of a sum.
  const bool is_part = step_ == LayerStep::kOuter && layout_.tensor > 1;
  Forward(piece, kind,
          attributes({.m = tokens,
                      .n = out,
                      .k = in,
                      .trans_b = true,
                      .bias = has_bias,
                      .bias_once = has_bias && is_part}),
          launches);
  Backward(Phase::kWeightGradient, kind,
           attributes({.m = out,
                       .n = in,
                       .k = tokens,
                       .trans_a = true,
                       .accumulate = !layout_.shards_gradients()}),
           launches);
  Backward(Phase::kInputGradient, kind,
           attributes({.m = tokens, .n = in, .k = out}), launches);
  if (has_bias) {
    Backward(Phase::kWeightGradient, OpKind::kBiasGradient,
             ElementwiseAttributes{.rows = is_part ? norm_tokens_ : tokens,
                                   .cols = out,
                                   .accumulate = !layout_.shards_gradients()});
  }
  if (!by_op) return;
  Backward(Phase::kInputGradient, float8_copy(),
           QuantizeAttributes{.rows = tokens, .cols = out});
}

void LayerWriter::Linear(Piece piece, const LinearShape& shape) {
  const bool is_inner = piece == Piece::kQkv || piece == Piece::kGateUp;
  const bool is_outer = piece == Piece::kOutput || piece == Piece::kLast;
  step_ = is_inner   ? LayerStep::kInner
          : is_outer ? LayerStep::kOuter
                     : LayerStep::kOther;
  const bool quantizes_here = quantizes() && shape.low_precision;
  if (quantizes_here && quantizes_by_op()) QuantizeInput(piece, shape);
  Product(piece, shape);
  if (!quantizes_here || quantizes_by_op()) return;
  // Copies of x and of its transpose, then of the output's gradient. The op
  // that made x writes them where ops are fused; gradients come from other
  // products.
  const bool apart = part_ == LayerPart::kExperts && !style_.fuses_experts;
  const double copies = 2 * quantized_bytes();
  const double x = AsDouble(shape.count * shape.tokens * shape.in);
  const double d_y = AsDouble(shape.count * shape.tokens * shape.out);
  const bool is_fused = style_.fused_elementwise && !apart;
  const int64_t launches = apart ? shape.count : 1;
  Traffic(OpKind::kQuantize, piece,
          (copies + (is_fused ? 0 : element_bytes_)) * x,
          (copies + element_bytes_) * d_y,
          is_fused ? 0 : static_cast<int32_t>(launches));
}

AttentionAttributes LayerWriter::AttentionShape() const {
  return {.num_sequences = layout_.micro_batch,
          .sequence_length = model_.sequence_length / layout_.context,
          .num_heads = model_.num_heads / layout_.tensor,
          .num_kv_heads = model_.num_kv_heads / layout_.tensor,
          .head_dim = model_.head_dim};
}

void LayerWriter::Attention() {
  step_ = LayerStep::kAttend;
  AttentionAttributes shape = AttentionShape();
  if (model_.window_share() < 1 && !is_global_) {
    shape.window = model_.sliding_window;
  }
  shape.softcap = model_.attention_softcap;
  shape.document_length = layout_.document_length;
  const Piece piece = Piece::kAttention;
  if (style_.flash_attention && layout_.context == 1 &&
      model_.mla.kv_rank == 0) {
    if (attends_in_float8()) {
      Forward(piece, OpKind::kQuantizeAttention, AttentionShape());
      Forward(piece, OpKind::kFloat8AttentionForward, shape);
    } else {
      Forward(piece, OpKind::kAttentionForward, shape);
    }
    Backward(Phase::kInputGradient, OpKind::kAttentionBackward, shape);
    return;
  }
  const GeneralAttentionAttributes general{
      .num_sequences = shape.num_sequences,
      .num_heads = shape.num_heads,
      .num_kv_heads = shape.num_kv_heads,
      .query_tokens = shape.sequence_length,
      .key_tokens = model_.sequence_length,
      .head_dim = model_.head_dim,
      .value_head_dim = model_.value_head_dim(),
      .window = shape.window,
      // Without flash attention every pair of tokens is computed, and masked.
      .document_length = style_.flash_attention ? shape.document_length : 0};
  if (style_.flash_attention) {
    Forward(piece, OpKind::kGeneralAttentionForward, general);
    Backward(Phase::kInputGradient, OpKind::kGeneralAttentionBackward, general);
    return;
  }
  constexpr int32_t kLaunches = 2;  // Scores, and values weighed by them.
  Forward(piece, OpKind::kUnfusedAttentionForward, general, kLaunches);
  Backward(Phase::kInputGradient, OpKind::kUnfusedAttentionBackward, general,
           kLaunches);
}

void LayerWriter::Rope(Piece piece) {
  if (model_.learned_positions > 0) return;
  AttentionAttributes attributes = AttentionShape();
  const bool norms = model_.qk_norm;
  const double heads =
      AsDouble(tokens_ * (attributes.num_heads + attributes.num_kv_heads));
  const double elements = heads * AsDouble(attributes.head_dim);
  if (norms) {
    // The heads as they were, and what each was scaled by.
    constexpr double kScaleBytes = 4;
    KeepElements(piece, elements);
    Keep(piece, kScaleBytes * heads);
  }
  if (!style_.fused_elementwise || layout_.context > 1) {
    const double forward = norms ? 4 : 2, backward = norms ? 5 : 2;
    Elementwise(OpKind::kElementwise, piece, forward * elements,
                backward * elements);
    return;
  }
  step_ = LayerStep::kRope;
  if (model_.sliding_rope_theta > 0 && !is_global_) {
    attributes.rope_theta = model_.sliding_rope_theta;
  } else {
    attributes.rope_theta = model_.rope_theta;
    attributes.rope_scaling = model_.rope_scaling;
    attributes.rope_factors = FingerprintOf(model_.rope_factors);
  }
  attributes.rotary_dim = model_.rotary_dim;
  attributes.rotary_scale = RotaryScale(model_, attributes.rope_scaling);
  if (norms) {
    attributes.norm_epsilon = model_.norm_epsilon;
    attributes.adds_one = model_.norm_adds_one;
    Forward(piece, OpKind::kQkNormRopeForward, attributes);
    attributes.accumulate = !layout_.shards_gradients();
    Backward(Phase::kInputGradient, OpKind::kQkNormRopeBackward, attributes);
    return;
  }
  Forward(piece, OpKind::kRope, attributes);
  attributes.inverse = true;
  Backward(Phase::kInputGradient, OpKind::kRope, attributes);
}

void LayerWriter::Activation(Piece piece, int64_t rows, int64_t width) {
  const bool is_gated = model_.num_inner_projections() == 2;
  // Tensors that the op reads and writes, forward and backward.
  const double forward = is_gated ? 3 : 2, backward = is_gated ? 5 : 3;
  const auto [op, backward_op] = ActivationOpsOf(model_.feed_forward);
  if (!style_.fused_elementwise || op == OpKind::kElementwise) {
    const double elements = AsDouble(rows * width);
    Elementwise(OpKind::kElementwise, piece, forward * elements,
                backward * elements);
    return;
  }
  step_ = LayerStep::kActivation;
  const ElementwiseAttributes attributes{
      .rows = rows,
      .cols = width,
      .erf = model_.feed_forward == FeedForward::kGeluErf};
  Forward(piece, op, attributes);
  Backward(Phase::kInputGradient, backward_op, attributes);
}

NormAttributes LayerWriter::NormOf(int64_t tokens) const {
  return {.num_tokens = tokens,
          .hidden = model_.hidden,
          .epsilon = model_.norm_epsilon,
          .adds_one = model_.norm_adds_one};
}

void LayerWriter::OutputNorm(Piece piece) {
  if (!model_.output_norms) return;
  // Its input, and what each row was scaled by.
  constexpr double kScaleBytes = 4;
  const double elements = AsDouble(norm_tokens_ * model_.hidden);
  KeepElements(piece, elements);
  Keep(piece, kScaleBytes * AsDouble(norm_tokens_));
  if (!style_.fused_elementwise) {
    Elementwise(OpKind::kElementwise, piece, 2 * elements, 3 * elements);
    return;
  }
  step_ = LayerStep::kOutputNorm;
  const bool is_layer = model_.norm == NormKind::kLayer;
  NormAttributes norm = NormOf(norm_tokens_);
  Forward(piece, is_layer ? OpKind::kLayerNormForward : OpKind::kRmsNormForward,
          norm);
  norm.accumulate = !layout_.shards_gradients();
  Backward(Phase::kInputGradient,
           is_layer ? OpKind::kLayerNormBackward : OpKind::kRmsNormBackward,
           norm);
}

void LayerWriter::Norm(int64_t tokens, StreamInput input) {
  const auto bytes_of = [&](double passes) -> TrafficAttributes {
    return {.bytes = element_bytes_ * kUnfusedPasses * passes *
                     AsDouble(tokens * model_.hidden)};
  };
  const bool is_fused = style_.fused_elementwise;
  const bool is_layer = model_.norm == NormKind::kLayer;
  const int32_t launches = is_fused ? 1 : kUnfusedLaunches;
  const NormAttributes norm = NormOf(tokens);
  // The residual and the block's output in, their sum and the norm out.
  const auto add = [&](Phase phase, StreamInput stream) {
    const bool adds = stream == StreamInput::kSum;
    const OpKind plain =
        is_layer ? OpKind::kLayerNormForward : OpKind::kRmsNormForward;
    const OpKind residual = is_layer ? OpKind::kResidualLayerNormForward
                                     : OpKind::kResidualRmsNormForward;
    const OpKind kind = !is_fused ? OpKind::kElementwise
                        : adds    ? residual
                                  : plain;
    const OpAttributes attributes =
        is_fused ? OpAttributes(norm) : bytes_of(adds ? 4 : 2);
    (phase == Phase::kForward ? graph_.ops : recompute_)
        .push_back(MakeOp(phase, kind, attributes, launches));
  };
  step_ = LayerStep::kNorm;
  add(Phase::kForward, input);
  if (IsRecomputed(Piece::kNorm)) {
    // The sum was kept, unless attention's output is recomputed as well.
    const bool adds_again =
        style_.recomputes_stream ||
        (block_ == LayerBlock::kFeedForward && IsRecomputed(Piece::kOutput));
    add(Phase::kRecompute,
        adds_again ? StreamInput::kSum : StreamInput::kWhole);
  }
  // The gradients of norm and stream and the norm's input in, the stream's out.
  if (!is_fused) {
    Backward(Phase::kInputGradient, OpKind::kElementwise, bytes_of(4),
             launches);
    return;
  }
  NormAttributes backward = norm;
  backward.accumulate = !layout_.shards_gradients();
  Backward(Phase::kInputGradient,
           is_layer ? OpKind::kLayerNormBackward : OpKind::kRmsNormBackward,
           backward);
}

void LayerWriter::Traffic(OpKind kind, Piece piece, double forward_bytes,
                          double backward_bytes, int32_t launches) {
  step_ = LayerStep::kOther;
  Forward(piece, kind, TrafficAttributes{.bytes = forward_bytes}, launches);
  if (backward_bytes <= 0) return;
  Backward(Phase::kInputGradient, kind,
           TrafficAttributes{.bytes = backward_bytes}, launches);
}

void LayerWriter::Elementwise(OpKind kind, Piece piece, double forward_elements,
                              double backward_elements) {
  const bool is_fused = style_.fused_elementwise;
  const double bytes = element_bytes_ * (is_fused ? 1 : kUnfusedPasses);
  Traffic(kind, piece, bytes * forward_elements, bytes * backward_elements,
          is_fused ? 1 : kUnfusedLaunches);
}

CollectiveAttributes LayerWriter::TensorCollective(int64_t elements) const {
  return {.group = Group::kTensor,
          .num_elements = elements,
          .dtype = activation_type_};
}

void LayerWriter::Collective(LayerStep step, OpKind kind, Piece piece,
                             int64_t elements) {
  step_ = step;
  Forward(piece, kind, TensorCollective(elements));
}

void LayerWriter::CollectiveBackward(LayerStep step, OpKind kind, Phase phase,
                                     int64_t elements) {
  step_ = step;
  Backward(phase, kind, TensorCollective(elements));
}

void LayerWriter::Exchange(OpKind kind, Piece piece, double elements) {
  Forward(piece, kind, ExchangeAttributes{.bytes = elements * element_bytes_});
}

void LayerWriter::ExchangeBackward(OpKind kind, double elements) {
  Backward(Phase::kInputGradient, kind,
           ExchangeAttributes{.bytes = elements * element_bytes_});
}

void LayerWriter::ExpertExchange(Piece piece, double elements) {
  const ExchangeAttributes exchange{
      .bytes = elements * element_bytes_,
      .experts_per_row =
          style_.sends_tokens_once ? model_.moe.experts_per_token : 0};
  Forward(piece, OpKind::kExpertExchange, exchange);
  Backward(Phase::kInputGradient, OpKind::kExpertExchange, exchange);
}

void LayerWriter::EnterTensor(Piece piece, int64_t width) {
  if (layout_.tensor == 1) return;
  constexpr LayerStep kStep = LayerStep::kGather;
  const int64_t elements = tokens_ * width;
  if (!style_.sequence_parallel) {
    CollectiveBackward(kStep, OpKind::kAllReduce, Phase::kInputGradient,
                       elements);
    return;
  }
  // Gathered tensors are kept in copies, and gathered again only where the
  // norm's output is computed again.
  const bool keeps_copies = quantizes_by_op();
  Collective(kStep, OpKind::kAllGather, keeps_copies ? Piece::kNorm : piece,
             elements);
  CollectiveBackward(kStep, OpKind::kReduceScatter, Phase::kInputGradient,
                     elements);
  if (style_.keeps_gathered || keeps_copies) return;
  // Kept as shards and gathered again: a rank then holds 1 / tensor of it
  // between the passes.
  CollectiveBackward(kStep, OpKind::kAllGather, Phase::kWeightGradient,
                     elements);
}

void LayerWriter::LeaveTensor(Piece piece, int64_t width) {
  if (layout_.tensor == 1) return;
  constexpr LayerStep kStep = LayerStep::kReduce;
  const int64_t elements = tokens_ * width;
  if (!style_.sequence_parallel) {
    Collective(kStep, OpKind::kAllReduce, piece, elements);
    return;
  }
  Collective(kStep, OpKind::kReduceScatter, piece, elements);
  CollectiveBackward(kStep, OpKind::kAllGather, Phase::kInputGradient,
                     elements);
}

void LayerWriter::Keep(Piece piece, double bytes) {
  (IsRecomputed(piece) ? recomputed_bytes_[static_cast<size_t>(block_)]
                       : kept_bytes_) += bytes;
}

void LayerWriter::KeepNormed(int64_t width) {
  const bool is_whole = style_.keeps_gathered || quantizes_by_op();
  Keep(Piece::kNorm, AsDouble((is_whole ? tokens_ : norm_tokens_) * width) *
                         product_input_bytes());
}

void LayerWriter::Work(double bytes) {
  block_bytes_ = std::max(block_bytes_, bytes);
}

LayerGraph LayerWriter::Build() && {
  if (quantizes_by_op()) AskForAmaxOfGradients();
  const auto append_recompute = [&](size_t begin, size_t end) {
    graph_.ops.insert(graph_.ops.end(), recompute_.begin() + begin,
                      recompute_.begin() + end);
  };
  const auto append_backward = [&](size_t begin, size_t end) {
    graph_.ops.insert(graph_.ops.end(), backward_.rend() - end,
                      backward_.rend() - begin);
  };
  // The feed-forward block reads attention's output. Where that is recomputed,
  // so is all of attention that its recompute needs, and at that time.
  const size_t first =
      IsRecomputed(Piece::kOutput) ? 0 : feed_forward_recompute_;
  append_recompute(first, recompute_.size());
  append_backward(feed_forward_backward_, backward_.size());
  append_recompute(0, first);
  append_backward(0, feed_forward_backward_);
  graph_.activation_bytes = std::llround(kept_bytes_);
  // Workers recompute a block when its backward pass begins. How frameworks'
  // policies do it is not known: both blocks' bytes then count.
  const bool is_by_block =
      !IsRecomputed(Piece::kOutput) && layout_.recompute != Recompute::kPolicy;
  const auto [attention, feed_forward] = recomputed_bytes_;
  graph_.working_bytes = std::llround(
      block_bytes_ + (is_by_block ? std::max(attention, feed_forward)
                                  : attention + feed_forward));
  return std::move(graph_);
}

}  // namespace millrace
