// The ops over the vocabulary: embedding, head and loss. A rank's rows of it
// begin at its tensor index times the rows of a shard.

#include <variant>

#include "base/status_macros.h"
#include "base/units.h"
#include "kernels/vocabulary/cross_entropy_bf16.h"
#include "kernels/vocabulary/cross_entropy_plain.h"
#include "kernels/vocabulary/embedding_bf16.h"
#include "kernels/vocabulary/embedding_plain.h"
#include "kernels/vocabulary/position_plain.h"
#include "kernels/vocabulary/preference.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/cuda/ops/ops.h"

namespace millrace {
namespace {

int64_t VocabBegin(const CudaOpContext& context,
                   const VocabAttributes& attributes) {
  return context.coordinates.tensor * attributes.vocab_rows;
}

// The weights of a gradient's tokens; null where all have one.
const float* TokenWeights(const CudaOpContext& context, const Instruction& in) {
  return context.layout.trains_preferences()
             ? context.Input<float>(in, in.inputs.size() - 1)
             : nullptr;
}

double* LossScalar(const CudaOpContext& context, const Instruction& in,
                   size_t i) {
  return context.Output<double>(in, i) + kLossScalar;
}

CudaOp BindEmbeddingForward(const CudaOpContext& context,
                            const Instruction& in) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  if (IsBf16(context)) {
    const EmbeddingForwardBf16Args args = {
        .x = context.Output<void>(in, 0),
        .tokens = context.Input<int32_t>(in, 0),
        .weight = context.Input<void>(in, 1),
        .num_tokens = attributes.num_tokens,
        .hidden = attributes.hidden,
        .vocab_begin = VocabBegin(context, attributes),
        .vocab_rows = attributes.vocab_rows,
        .scale = static_cast<float>(attributes.embedding_scale)};
    return [args](cudaStream_t stream) {
      return LaunchEmbeddingForwardBf16(args, stream);
    };
  }
  const PlainEmbeddingForwardArgs args = {
      .x = context.Output<void>(in, 0),
      .tokens = context.Input<int32_t>(in, 0),
      .weight = context.Input<void>(in, 1),
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .vocab_begin = VocabBegin(context, attributes),
      .vocab_rows = attributes.vocab_rows,
      .scale = static_cast<float>(attributes.embedding_scale)};
  return [args](cudaStream_t stream) {
    return LaunchPlainEmbeddingForward(args, ElementType::kFloat32, stream);
  };
}

absl::StatusOr<CudaOp> BindEmbeddingBackward(const CudaOpContext& context,
                                             const Instruction& in) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  if (IsBf16(context)) {
    ASSIGN_OR_RETURN(
        void* workspace,
        ScratchOf(context, context.deterministic
                               ? EmbeddingBackwardBf16WorkspaceBytes(
                                     attributes.num_tokens, attributes.hidden)
                               : 0));
    const EmbeddingBackwardBf16Args args = {
        .d_weight = context.Output<float>(in, 0),
        .tokens = context.Input<int32_t>(in, 0),
        .d_x = context.Input<void>(in, 1),
        .num_tokens = attributes.num_tokens,
        .hidden = attributes.hidden,
        .vocab_begin = VocabBegin(context, attributes),
        .vocab_rows = attributes.vocab_rows,
        .accumulate = attributes.accumulate,
        .deterministic = context.deterministic,
        .workspace = workspace,
        .scale = static_cast<float>(attributes.embedding_scale)};
    return CudaOp([args](cudaStream_t stream) {
      return LaunchEmbeddingBackwardBf16(args, stream);
    });
  }
  ASSIGN_OR_RETURN(void* workspace,
                   ScratchOf(context, PlainEmbeddingBackwardWorkspaceBytes(
                                          attributes.num_tokens)));
  const PlainEmbeddingBackwardArgs args = {
      .d_weight = context.Output<float>(in, 0),
      .tokens = context.Input<int32_t>(in, 0),
      .d_x = context.Input<void>(in, 1),
      .workspace = workspace,
      .num_tokens = attributes.num_tokens,
      .hidden = attributes.hidden,
      .vocab_begin = VocabBegin(context, attributes),
      .vocab_rows = attributes.vocab_rows,
      .accumulate = attributes.accumulate,
      .scale = static_cast<float>(attributes.embedding_scale)};
  return CudaOp([args](cudaStream_t stream) {
    return LaunchPlainEmbeddingBackward(args, ElementType::kFloat32, stream);
  });
}

PositionShape PositionsOf(const CudaOpContext& context,
                          const VocabAttributes& attributes) {
  return {.num_tokens = attributes.num_tokens,
          .sequence_length = attributes.sequence_length,
          .hidden = attributes.hidden,
          .first_row = VocabBegin(context, attributes),
          .num_rows = attributes.vocab_rows};
}

CudaOp BindPositionForward(const CudaOpContext& context,
                           const Instruction& in) {
  const PlainAddPositionsArgs args = {
      .x = context.Output<void>(in, 0),
      .weight = context.Input<void>(in, 1),
      .shape = PositionsOf(context, std::get<VocabAttributes>(in.attributes))};
  return [args, type = ElementTypeOf(context)](cudaStream_t stream) {
    return LaunchPlainAddPositions(args, type, stream);
  };
}

CudaOp BindPositionBackward(const CudaOpContext& context,
                            const Instruction& in) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  const PlainPositionGradientArgs args = {
      .d_weight = context.Output<float>(in, 0),
      .d_x = context.Input<void>(in, 0),
      .shape = PositionsOf(context, attributes),
      .accumulate = attributes.accumulate};
  return [args, type = ElementTypeOf(context)](cudaStream_t stream) {
    return LaunchPlainPositionGradient(args, type, stream);
  };
}

// A plain plan and its memory: in fp32 the operand is the logits and the rest
// is scratch, in bf16 the operand holds both.
struct PlainLoss {
  const PlainCrossEntropyPlan* plan;
  void* logits;
  void* workspace;
};
absl::StatusOr<PlainLoss> PlanPlainLoss(const CudaOpContext& context,
                                        const Instruction& in,
                                        size_t workspace_idx) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  ASSIGN_OR_RETURN(
      const PlainCrossEntropyPlan* plan,
      context.kernels->PlainCrossEntropy(
          attributes, VocabBegin(context, attributes), ElementTypeOf(context)));
  if (!IsBf16(context)) {
    ASSIGN_OR_RETURN(void* workspace,
                     ScratchOf(context, plan->workspace_bytes()));
    return PlainLoss{plan, context.Output<void>(in, workspace_idx), workspace};
  }
  const int64_t logits_bytes = RoundUp(plan->logits_bytes(), 256);
  ASSIGN_OR_RETURN(void* logits,
                   WorkspaceOf(context, in, workspace_idx,
                               logits_bytes + plan->workspace_bytes()));
  return PlainLoss{plan, logits, static_cast<char*>(logits) + logits_bytes};
}

// The fast plan and its workspace; null where the shape is none of its.
struct FastLoss {
  const CrossEntropyBf16Plan* plan = nullptr;
  void* workspace = nullptr;
};
absl::StatusOr<FastLoss> PlanFastLoss(const CudaOpContext& context,
                                      const Instruction& in,
                                      size_t workspace_idx) {
  if (!IsBf16(context)) return FastLoss{};
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  const absl::StatusOr<const CrossEntropyBf16Plan*> plan =
      context.kernels->CrossEntropy(attributes,
                                    VocabBegin(context, attributes));
  if (absl::IsInvalidArgument(plan.status())) return FastLoss{};
  RETURN_IF_ERROR(plan.status());
  ASSIGN_OR_RETURN(void* workspace, WorkspaceOf(context, in, workspace_idx,
                                                (*plan)->workspace_bytes()));
  return FastLoss{*plan, workspace};
}

absl::StatusOr<CudaOp> BindLinearCrossEntropy(const CudaOpContext& context,
                                              const Instruction& in) {
  ASSIGN_OR_RETURN(const FastLoss fast, PlanFastLoss(context, in, 3));
  if (fast.plan != nullptr) {
    const LinearCrossEntropyBf16Args args = {
        .d_hidden = context.Output<void>(in, 0),
        .d_weight = context.Output<float>(in, 1),
        .loss = LossScalar(context, in, 2),
        .hidden = context.Input<void>(in, 0),
        .weight = context.Input<void>(in, 1),
        .targets = context.Input<int32_t>(in, 2),
        .workspace = fast.workspace};
    return CudaOp([args, plan = fast.plan](cudaStream_t stream) {
      return plan->LinearCrossEntropy(args, stream);
    });
  }
  ASSIGN_OR_RETURN(const PlainLoss plain, PlanPlainLoss(context, in, 3));
  const PlainLinearCrossEntropyArgs args = {
      .d_hidden = context.Output<void>(in, 0),
      .d_weight = context.Output<float>(in, 1),
      .loss = LossScalar(context, in, 2),
      .hidden = context.Input<void>(in, 0),
      .weight = context.Input<void>(in, 1),
      .targets = context.Input<int32_t>(in, 2),
      .logits = plain.logits,
      .workspace = plain.workspace};
  return CudaOp([args, plan = plain.plan](cudaStream_t stream) {
    return plan->LinearCrossEntropy(args, stream);
  });
}

absl::StatusOr<CudaOp> BindCrossEntropyStats(const CudaOpContext& context,
                                             const Instruction& in) {
  ASSIGN_OR_RETURN(const FastLoss fast, PlanFastLoss(context, in, 1));
  if (fast.plan != nullptr) {
    const CrossEntropyStatsBf16Args args = {
        .stats = context.Output<float>(in, 0),
        .hidden = context.Input<void>(in, 0),
        .weight = context.Input<void>(in, 1),
        .targets = context.Input<int32_t>(in, 2),
        .workspace = fast.workspace};
    return CudaOp([args, plan = fast.plan](cudaStream_t stream) {
      return plan->Stats(args, stream);
    });
  }
  ASSIGN_OR_RETURN(const PlainLoss plain, PlanPlainLoss(context, in, 1));
  const PlainCrossEntropyStatsArgs args = {
      .stats = context.Output<float>(in, 0),
      .hidden = context.Input<void>(in, 0),
      .weight = context.Input<void>(in, 1),
      .targets = context.Input<int32_t>(in, 2),
      .logits = plain.logits,
      .workspace = plain.workspace};
  return CudaOp([args, plan = plain.plan](cudaStream_t stream) {
    return plan->Stats(args, stream);
  });
}

absl::StatusOr<CudaOp> BindCrossEntropyGradient(const CudaOpContext& context,
                                                const Instruction& in) {
  ASSIGN_OR_RETURN(const FastLoss fast, PlanFastLoss(context, in, 3));
  if (fast.plan != nullptr) {
    const CrossEntropyGradientBf16Args args = {
        .d_hidden = context.Output<void>(in, 0),
        .d_weight = context.Output<float>(in, 1),
        .loss = LossScalar(context, in, 2),
        .hidden = context.Input<void>(in, 0),
        .weight = context.Input<void>(in, 1),
        .targets = context.Input<int32_t>(in, 2),
        .all_stats = context.Input<float>(in, 3),
        .num_shards = context.layout.tensor,
        .token_weights = TokenWeights(context, in),
        .has_logits = std::get<VocabAttributes>(in.attributes).keeps_logits,
        .workspace = fast.workspace};
    return CudaOp([args, plan = fast.plan](cudaStream_t stream) {
      return plan->Gradient(args, stream);
    });
  }
  ASSIGN_OR_RETURN(const PlainLoss plain, PlanPlainLoss(context, in, 3));
  const PlainCrossEntropyGradientArgs args = {
      .d_hidden = context.Output<void>(in, 0),
      .d_weight = context.Output<float>(in, 1),
      .loss = LossScalar(context, in, 2),
      .hidden = context.Input<void>(in, 0),
      .weight = context.Input<void>(in, 1),
      .targets = context.Input<int32_t>(in, 2),
      .all_stats = context.Input<float>(in, 3),
      .num_shards = context.layout.tensor,
      .token_weights = TokenWeights(context, in),
      .logits = plain.logits,
      .workspace = plain.workspace};
  return CudaOp([args, plan = plain.plan](cudaStream_t stream) {
    return plan->Gradient(args, stream);
  });
}

CudaOp BindCrossEntropyLoss(const CudaOpContext& context,
                            const Instruction& in) {
  const auto& attributes = std::get<VocabAttributes>(in.attributes);
  const CrossEntropyLossArgs args = {.loss = LossScalar(context, in, 0),
                                     .targets = context.Input<int32_t>(in, 0),
                                     .all_stats = context.Input<float>(in, 1),
                                     .num_shards = context.layout.tensor,
                                     .num_tokens = attributes.num_tokens,
                                     .token_scale = attributes.token_scale,
                                     .loss_share = attributes.loss_share};
  return [args](cudaStream_t stream) {
    return LaunchCrossEntropyLoss(args, stream);
  };
}

// Returns the op's operands, with what the job says of the loss.
PreferenceLossArgs PreferenceLossOf(const CudaOpContext& context,
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

CudaOp BindPreferenceLoss(const CudaOpContext& context, const Instruction& in) {
  return [args = PreferenceLossOf(context, in)](cudaStream_t stream) {
    return LaunchPreferenceLoss(args, stream);
  };
}

}  // namespace

void RegisterCudaVocabularyOps(CudaBinders& binders) {
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
