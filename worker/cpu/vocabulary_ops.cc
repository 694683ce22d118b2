// The ops over the vocabulary: embedding, head and loss. A rank's rows of it
// begin at its tensor index times the rows of a shard.

#include <variant>

#include "base/status_macros.h"
#include "kernels/vocabulary/cross_entropy.h"
#include "kernels/vocabulary/embedding.h"
#include "kernels/vocabulary/position.h"
#include "kernels/vocabulary/preference.h"
#include "worker/cpu/ops.h"

namespace millrace {
namespace {

int64_t VocabBegin(const OpContext& context,
                   const VocabAttributes& attributes) {
  return context.coordinates.tensor * attributes.vocab_rows;
}

// The weights of a gradient's tokens; null where all have one.
const float* TokenWeights(const OpContext& context, const Instruction& in) {
  return context.layout.trains_preferences()
             ? context.Input<float>(in, in.inputs.size() - 1)
             : nullptr;
}

double* LossScalar(const OpContext& context, const Instruction& in, size_t i) {
  return context.Output<double>(in, i) + kLossScalar;
}

BoundOp BindEmbeddingForward(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  const EmbeddingForwardArgs args = {
      .x = context.Output<float>(in, 0),
      .tokens = context.Input<int32_t>(in, 0),
      .weight = context.Input<float>(in, 1),
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .vocab_begin = VocabBegin(context, attributes),
      .vocab_rows = attributes.vocab_rows,
      .scale = static_cast<float>(attributes.embedding_scale)};
  return [args, num_threads = context.kernels->num_threads()] {
    return EmbeddingForward(args, num_threads);
  };
}

BoundOp BindEmbeddingBackward(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  const EmbeddingBackwardArgs args = {
      .d_weight = context.Output<float>(in, 0),
      .tokens = context.Input<int32_t>(in, 0),
      .d_x = context.Input<float>(in, 1),
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .vocab_begin = VocabBegin(context, attributes),
      .vocab_rows = attributes.vocab_rows,
      .accumulate = attributes.accumulate,
      .scale = static_cast<float>(attributes.embedding_scale)};
  return [args, num_threads = context.kernels->num_threads()] {
    return EmbeddingBackward(args, num_threads);
  };
}

PositionShape PositionsOf(const OpContext& context,
                          const VocabAttributes& attributes) {
  return {.num_tokens = attributes.num_tokens,
          .sequence_length = attributes.sequence_length,
          .hidden = attributes.hidden,
          .first_row = VocabBegin(context, attributes),
          .num_rows = attributes.vocab_rows};
}

BoundOp BindPositionForward(const OpContext& context, const Instruction& in) {
  const AddPositionsArgs args = {
      .x = context.Output<float>(in, 0),
      .weight = context.Input<float>(in, 1),
      .shape = PositionsOf(context, std::get<VocabAttributes>(in.attributes))};
  return [args, num_threads = context.kernels->num_threads()] {
    return AddPositions(args, num_threads);
  };
}

BoundOp BindPositionBackward(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  const PositionGradientArgs args = {.d_weight = context.Output<float>(in, 0),
                                     .d_x = context.Input<float>(in, 0),
                                     .shape = PositionsOf(context, attributes),
                                     .accumulate = attributes.accumulate};
  return [args, num_threads = context.kernels->num_threads()] {
    return PositionGradient(args, num_threads);
  };
}

absl::StatusOr<BoundOp> BindLinearCrossEntropy(const OpContext& context,
                                               const Instruction& in) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  ASSIGN_OR_RETURN(CrossEntropyPlan * plan,
                   context.kernels->CrossEntropy(
                       attributes, VocabBegin(context, attributes)));
  LinearCrossEntropyArgs args = {.d_hidden = context.Output<float>(in, 0),
                                 .d_weight = context.Output<float>(in, 1),
                                 .loss = LossScalar(context, in, 2),
                                 .hidden = context.Input<float>(in, 0),
                                 .weight = context.Input<float>(in, 1),
                                 .targets = context.Input<int32_t>(in, 2),
                                 .logits = context.Output<float>(in, 3)};
  return [plan, args, kernels = context.kernels]() mutable {
    args.workspace = kernels->scratch();
    return plan->LinearCrossEntropy(args);
  };
}

absl::StatusOr<BoundOp> BindCrossEntropyStats(const OpContext& context,
                                              const Instruction& in) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  ASSIGN_OR_RETURN(CrossEntropyPlan * plan,
                   context.kernels->CrossEntropy(
                       attributes, VocabBegin(context, attributes)));
  CrossEntropyStatsArgs args = {.stats = context.Output<float>(in, 0),
                                .hidden = context.Input<float>(in, 0),
                                .weight = context.Input<float>(in, 1),
                                .targets = context.Input<int32_t>(in, 2),
                                .logits = context.Output<float>(in, 1)};
  return [plan, args, kernels = context.kernels]() mutable {
    args.workspace = kernels->scratch();
    return plan->Stats(args);
  };
}

absl::StatusOr<BoundOp> BindCrossEntropyGradient(const OpContext& context,
                                                 const Instruction& in) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  ASSIGN_OR_RETURN(CrossEntropyPlan * plan,
                   context.kernels->CrossEntropy(
                       attributes, VocabBegin(context, attributes)));
  CrossEntropyGradientArgs args = {.d_hidden = context.Output<float>(in, 0),
                                   .d_weight = context.Output<float>(in, 1),
                                   .loss = LossScalar(context, in, 2),
                                   .hidden = context.Input<float>(in, 0),
                                   .weight = context.Input<float>(in, 1),
                                   .targets = context.Input<int32_t>(in, 2),
                                   .all_stats = context.Input<float>(in, 3),
                                   .num_shards = context.layout.tensor,
                                   .token_weights = TokenWeights(context, in),
                                   .logits = context.Output<float>(in, 3)};
  return [plan, args, kernels = context.kernels]() mutable {
    args.workspace = kernels->scratch();
    return plan->Gradient(args);
  };
}

BoundOp BindCrossEntropyLoss(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  const CrossEntropyLossArgs args = {.loss = LossScalar(context, in, 0),
                                     .targets = context.Input<int32_t>(in, 0),
                                     .all_stats = context.Input<float>(in, 1),
                                     .num_shards = context.layout.tensor,
                                     .num_tokens = attributes.num_tokens,
                                     .token_scale = attributes.token_scale,
                                     .loss_share = attributes.loss_share};
  return [args] { return CrossEntropyLoss(args); };
}

// Returns the op's operands, with what the job says of the loss.
PreferenceLossArgs PreferenceLossOf(const OpContext& context,
                                    const Instruction& in) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  double* const scalars = context.Output<double>(in, 2);
  return {.weights = context.Output<float>(in, 0),
          .log_probabilities = context.Output<float>(in, 1),
          .loss = scalars + kLossScalar,
          .chosen_reward = scalars + kChosenRewardScalar,
          .rejected_reward = scalars + kRejectedRewardScalar,
          .accuracy = scalars + kAccuracyScalar,
          .targets = context.Input<int32_t>(in, 0),
          .document_starts = context.Input<int32_t>(in, 1),
          .pair_starts = context.Input<int32_t>(in, 2),
          .references = context.Input<float>(in, 3),
          .all_stats = context.Input<float>(in, 4),
          .num_shards = context.layout.tensor,
          .num_tokens = attributes.num_tokens,
          .sequence_length = attributes.sequence_length,
          .beta = context.training->dpo_beta,
          .label_smoothing = context.training->dpo_label_smoothing,
          .scale = attributes.token_scale * attributes.loss_share};
}

BoundOp BindPreferenceLoss(const OpContext& context, const Instruction& in) {
  return
      [args = PreferenceLossOf(context, in)] { return PreferenceLoss(args); };
}

}  // namespace

void RegisterVocabularyOps(CpuBinders& binders) {
  binders.Bind(OpKind::kEmbeddingForward, BindEmbeddingForward);
  binders.Bind(OpKind::kEmbeddingBackward, BindEmbeddingBackward);
  binders.Bind(OpKind::kPositionForward, BindPositionForward);
  binders.Bind(OpKind::kPositionBackward, BindPositionBackward);
  binders.Bind(OpKind::kLinearCrossEntropy, BindLinearCrossEntropy);
  binders.Bind(OpKind::kCrossEntropyStats, BindCrossEntropyStats);
  binders.Bind(OpKind::kCrossEntropyGradient, BindCrossEntropyGradient);
  binders.Bind(OpKind::kCrossEntropyLoss, BindCrossEntropyLoss);
  binders.Bind(OpKind::kPreferenceLoss, BindPreferenceLoss);
}

}  // namespace millrace
