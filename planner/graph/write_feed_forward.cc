#include "planner/graph/layer_writer.h"

namespace millrace {
namespace {

// Up (and gate), activation, down: `rows` tokens through `count` alike of this
// inner width. Recompute takes the first products for `inner` and the
// activation for `activation`.
void WriteProducts(LayerWriter& writer, Piece inner, Piece activation,
                   int64_t rows, int64_t width, int64_t count) {
  const ModelSpec& model = writer.model();
  const int64_t projections = model.num_inner_projections();
  const int64_t tokens = (rows + count - 1) / count;
  const double elements = AsDouble(rows * width);
  const bool bias = model.linear_bias;
  if (inner == Piece::kGateUp && projections == 2 &&
      writer.RecomputesSecondProducts()) {
    for (const Piece piece : {inner, Piece::kSecondProduct}) {
      writer.Linear(piece, {.tokens = tokens,
                            .out = width,
                            .in = model.hidden,
                            .count = count,
                            .bias = bias});
    }
    writer.KeepElements(inner, elements);
    writer.KeepElements(Piece::kSecondProduct, elements);
    // The last product's output, which nothing reads, is kept as well.
    writer.KeepElements(Piece::kProduct, AsDouble(rows * model.hidden));
  } else {
    writer.Linear(inner, {.tokens = tokens,
                          .out = projections * width,
                          .in = model.hidden,
                          .count = count,
                          .bias = bias});
    writer.KeepElements(inner, AsDouble(projections) * elements);
  }
  writer.Activation(activation, rows, width);
  writer.Keep(activation, elements * writer.product_input_bytes());
  writer.Linear(Piece::kLast, {.tokens = tokens,
                               .out = model.hidden,
                               .in = width,
                               .count = count,
                               .bias = bias});
  // Backward: gradients of output and input, of the activation and before it.
  writer.Work(writer.element_bytes() * (2 * AsDouble(rows * model.hidden) +
                                        AsDouble(projections + 1) * elements) +
              writer.copy_bytes() * AsDouble(projections) * elements);
}

// Writes the clamps and biases of gpt-oss's experts as ops of their own, for
// kernels that do not fuse them, as Megatron-Core 0.15 to 0.17 writes it and
// PyTorch's autograd runs it (weighted_bias_quick_geglu_impl,
// TEGroupedMLP._apply_bias). In bytes of an element read and written,
// activations in 16 bits.
void WriteExpertBiases(LayerWriter& writer, Piece activation, int64_t rows,
                       int64_t width, int64_t num_experts) {
  // An element of both halves is clamped, and the halves are joined again.
  // Backward finds what lies in bounds (one bound for the gate, two for the
  // other half), takes the gradient there, and joins both halves.
  constexpr double kClamp = 4 + 4;
  constexpr double kGateBack = 3 + 5, kOtherBack = 3 + 3 + 3 + 5, kJoined = 4;
  constexpr int32_t kClampLaunches = 3;
  const double half = AsDouble(rows * width);
  writer.Traffic(OpKind::kElementwise, activation, 2 * kClamp * half,
                 (kGateBack + kOtherBack + 2 * kJoined) * half, kClampLaunches);
  writer.KeepElements(activation, 2 * half);
  // An element returned: the expert's bias times the token's weight, added, all
  // experts joined. Backward times weight and times bias, each summed, and
  // joined. DeepEP's and HybridEP's weights are fp32, and so is what they touch
  // until it is cast.
  constexpr double kBias = 2 + 6 + 4, kBiasBack = 6 + 6 + 4;
  constexpr double kBiasInFloat = 4 + 10 + 8 + 6;
  constexpr double kBiasInFloatBack = 6 + 6 + 12 + 12 + 4;
  const bool in_float = writer.style().sends_tokens_once;
  const double returned = AsDouble(rows * writer.model().hidden);
  writer.Traffic(OpKind::kElementwise, Piece::kLast,
                 (in_float ? kBiasInFloat : kBias) * returned,
                 (in_float ? kBiasInFloatBack : kBiasBack) * returned,
                 static_cast<int32_t>(2 * num_experts + 1));
}

}  // namespace

void WriteFeedForward(LayerWriter& writer) {
  const ModelSpec& model = writer.model();
  const double normed = AsDouble(writer.norm_tokens() * model.hidden);
  writer.BeginBlock(LayerBlock::kFeedForward);
  writer.KeepElements(Piece::kOutput, normed);  // The stream.
  writer.Norm(writer.norm_tokens());
  writer.KeepNormed(model.hidden);
  writer.EnterTensor(Piece::kGateUp, model.hidden);
  WriteProducts(writer, Piece::kGateUp, Piece::kActivation, writer.tokens(),
                model.ffn_hidden / writer.layout().tensor, 1);
  writer.LeaveTensor(Piece::kLast, model.hidden);
  if (writer.style().dropout) writer.Keep(Piece::kProduct, normed);
}

void WriteExperts(LayerWriter& writer) {
  const ModelSpec& model = writer.model();
  const MixtureOfExperts& moe = model.moe;
  const Layout& layout = writer.layout();
  const int64_t tokens = writer.shard_tokens();
  const double stream = AsDouble(tokens * model.hidden);
  writer.BeginBlock(LayerBlock::kFeedForward);
  writer.Begin(LayerPart::kRouter);
  writer.KeepElements(Piece::kOutput, stream);
  writer.Norm(tokens);
  // The router reads it as stored.
  writer.KeepElements(Piece::kNorm, stream);

  writer.Linear(Piece::kExperts, {.tokens = tokens,
                                  .out = moe.num_experts,
                                  .in = model.hidden,
                                  .low_precision = false});
  // Scores and the chosen ones in fp32, and which were chosen.
  constexpr double kScoreBytes = 4 + 4 + 1;
  const double scores = AsDouble(tokens * moe.num_experts);
  writer.Keep(Piece::kExperts, kScoreBytes * scores);
  constexpr int32_t kRouterLaunches = 6;
  writer.Traffic(OpKind::kRouter, Piece::kExperts, 2 * kScoreBytes * scores,
                 2 * kScoreBytes * scores, kRouterLaunches);

  writer.Begin(LayerPart::kExperts);
  // Rows in the order of their experts go to the ranks that have these. There
  // they are joined by what the tensor ranks got for the same shards of
  // experts.
  const int64_t sent = tokens * model.hidden * moe.experts_per_token;
  const int64_t received = sent * layout.expert_tensor;
  const int64_t rows = tokens * moe.experts_per_token * layout.expert_tensor;
  const int64_t local_experts = moe.num_experts / layout.expert;
  const bool sorts = layout.expert > 1 && local_experts > 1;
  writer.Elementwise(OpKind::kPermuteTokens, Piece::kExperts,
                     stream + AsDouble(sent), stream + AsDouble(sent));
  if (layout.expert > 1) writer.ExpertExchange(Piece::kExperts, AsDouble(sent));
  if (sorts) {
    writer.Elementwise(OpKind::kPermuteTokens, Piece::kExperts,
                       2 * AsDouble(received), 2 * AsDouble(received));
  }
  if (layout.expert_tensor > 1) {
    writer.Collective(LayerStep::kOther, OpKind::kAllGather, Piece::kExperts,
                      received);
    writer.CollectiveBackward(LayerStep::kOther, OpKind::kReduceScatter,
                              Phase::kInputGradient, received);
  }
  writer.Keep(Piece::kExperts,
              AsDouble(received) * writer.product_input_bytes());
  const int64_t width = moe.expert_hidden / layout.expert_tensor;
  WriteProducts(writer, Piece::kExpertProducts, Piece::kExpertActivation, rows,
                width, local_experts);
  if (writer.style().adds_expert_biases) {
    WriteExpertBiases(writer, Piece::kExpertActivation, rows, width,
                      local_experts);
  }

  // And back, to be weighed and summed.
  if (layout.expert_tensor > 1) {
    writer.Collective(LayerStep::kOther, OpKind::kReduceScatter, Piece::kLast,
                      received);
    writer.CollectiveBackward(LayerStep::kOther, OpKind::kAllGather,
                              Phase::kInputGradient, received);
  }
  if (sorts) {
    writer.Elementwise(OpKind::kPermuteTokens, Piece::kLast,
                       2 * AsDouble(received), 2 * AsDouble(received));
  }
  if (layout.expert > 1) writer.ExpertExchange(Piece::kLast, AsDouble(sent));
  writer.Elementwise(OpKind::kPermuteTokens, Piece::kLast,
                     stream + AsDouble(sent), stream + AsDouble(sent));

  if (moe.num_shared_experts == 0) return;
  writer.Begin(LayerPart::kOther);
  writer.EnterTensor(Piece::kGateUp, model.hidden);
  WriteProducts(writer, Piece::kExpertProducts, Piece::kExpertActivation,
                writer.tokens(),
                moe.num_shared_experts * moe.expert_hidden / layout.tensor, 1);
  writer.LeaveTensor(Piece::kLast, model.hidden);
}

}  // namespace millrace
