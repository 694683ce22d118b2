#include <cmath>

#include "planner/graph/layer_writer.h"
#include "planner/program/workspace.h"

namespace millrace {
namespace {

// As a number of the activations' type, which Gemma's embedding has it in.
double EmbeddingScale(const ModelSpec& model, DType type) {
  const auto scale =
      static_cast<float>(std::sqrt(static_cast<double>(model.hidden)));
  if (type != DType::kBfloat16) return scale;
  // To the nearest with 8 significant bits, ties to even.
  int exponent = 0;
  const double fraction = std::frexp(double{scale}, &exponent);
  constexpr int kBits = 8;
  return std::ldexp(std::nearbyint(std::ldexp(fraction, kBits)),
                    exponent - kBits);
}

}  // namespace

void LayerWriter::Embedding() {
  step_ = LayerStep::kOther;
  VocabAttributes attributes{.num_tokens = tokens_,
                             .hidden = model_.hidden,
                             .vocab_rows = model_.vocab_size / layout_.tensor};
  if (model_.scales_embedding) {
    attributes.embedding_scale = EmbeddingScale(model_, activation_type_);
  }
  Forward(Piece::kProduct, OpKind::kEmbeddingForward, attributes);
  // A tied embedding's gradient is added to the head's.
  attributes.accumulate = !layout_.shards_gradients() ||
                          (model_.ties_embedding && layout_.pipeline == 1);
  Backward(Phase::kWeightGradient, OpKind::kEmbeddingBackward, attributes);
  if (model_.learned_positions == 0) return;
  VocabAttributes positions{
      .num_tokens = tokens_,
      .hidden = model_.hidden,
      .vocab_rows = model_.learned_positions / layout_.tensor,
      .sequence_length = model_.sequence_length};
  Forward(Piece::kProduct, OpKind::kPositionForward, positions);
  positions.accumulate = !layout_.shards_gradients();
  Backward(Phase::kWeightGradient, OpKind::kPositionBackward, positions);
}

void LayerWriter::ChunkedLoss(LossUse use) {
  step_ = LayerStep::kOther;
  const bool trains = use == LossUse::kTraining;
  const int64_t vocab_rows = model_.vocab_size / layout_.tensor;
  const int64_t num_sequences =
      trains ? layout_.global_batch()
             : int64_t{layout_.micro_batch} * layout_.data;
  VocabAttributes attributes{
      .num_tokens = tokens_,
      .hidden = model_.hidden,
      .vocab_rows = vocab_rows,
      .chunk_tokens = ChunkTokens(layout_.precision, tokens_, vocab_rows),
      .token_scale = 1 / AsDouble(num_sequences * model_.sequence_length),
      // Every tensor rank adds the loss of all tokens.
      .loss_share = 1.0 / layout_.tensor,
      .softcap = model_.logit_softcap};
  const auto launches = static_cast<int32_t>(
      (tokens_ + attributes.chunk_tokens - 1) / attributes.chunk_tokens);
  const Piece piece = Piece::kProduct;
  if (!trains) {
    Forward(piece, OpKind::kCrossEntropyStats, attributes, launches);
    GatherStatistics();
    if (layout_.trains_preferences()) {
      PreferenceLoss(attributes);
    } else {
      Forward(piece, OpKind::kCrossEntropyLoss, attributes);
    }
    return;
  }
  // The weight of a token depends on the loss of all tokens of its pair.
  if (layout_.tensor == 1 && !layout_.trains_preferences()) {
    attributes.accumulate = !layout_.shards_gradients();
    Backward(Phase::kInputGradient, OpKind::kLinearCrossEntropy, attributes,
             launches);
    return;
  }
  // Between the statistics' exchange and the gradient, the logits of one chunk
  // can be kept. They are worth their memory where that is all of them.
  attributes.keeps_logits = layout_.precision == Precision::kBfloat16 &&
                            attributes.chunk_tokens >= tokens_;
  Forward(piece, OpKind::kCrossEntropyStats, attributes, launches);
  attributes.accumulate = !layout_.shards_gradients();
  Backward(Phase::kInputGradient, OpKind::kCrossEntropyGradient, attributes,
           launches);
  GatherStatistics();
  if (layout_.trains_preferences()) PreferenceLoss(attributes);
}

void LayerWriter::PreferenceLoss(const VocabAttributes& loss) {
  Forward(Piece::kProduct, OpKind::kPreferenceLoss,
          VocabAttributes{.num_tokens = loss.num_tokens,
                          .hidden = loss.hidden,
                          .vocab_rows = loss.vocab_rows,
                          .token_scale = loss.token_scale,
                          .loss_share = loss.loss_share,
                          .sequence_length = model_.sequence_length});
}

void LayerWriter::GatherStatistics() {
  if (layout_.tensor == 1) return;
  step_ = LayerStep::kOther;
  constexpr int64_t kStatistics = 3;
  Forward(Piece::kProduct, OpKind::kAllGather,
          CollectiveAttributes{
              .group = Group::kTensor,
              .num_elements = kStatistics * tokens_ * layout_.tensor,
              .dtype = DType::kFloat32});
}

}  // namespace millrace
