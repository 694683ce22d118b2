#include "worker/cpu/ops.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

absl::StatusOr<BoundOp> BindByFamily(const OpContext& context,
                                     const Instruction& instruction) {
  switch (instruction.kind) {
    case OpKind::kRmsNormForward:
    case OpKind::kResidualRmsNormForward:
    case OpKind::kRmsNormBackward:
    case OpKind::kAdd:
    case OpKind::kGemm:
    case OpKind::kRope:
    case OpKind::kAttentionForward:
    case OpKind::kAttentionBackward:
    case OpKind::kSwigluForward:
    case OpKind::kSwigluBackward:
      return BindLayerOp(context, instruction);
    case OpKind::kEmbeddingForward:
    case OpKind::kEmbeddingBackward:
    case OpKind::kLinearCrossEntropy:
    case OpKind::kCrossEntropyStats:
    case OpKind::kCrossEntropyGradient:
    case OpKind::kCrossEntropyLoss:
      return BindVocabularyOp(context, instruction);
    case OpKind::kLoadBatch:
    case OpKind::kZero:
    case OpKind::kAccumulateGradients:
    case OpKind::kRoundGradients:
    case OpKind::kWidenGradients:
    case OpKind::kSquaredNorm:
    case OpKind::kClipFactor:
    case OpKind::kAdamW:
    case OpKind::kCastParameters:
      return BindStepOp(context, instruction);
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kAllReduce:
    case OpKind::kSend:
    case OpKind::kReceive:
      return BindCommunicationOp(context, instruction);
  }
  return absl::InternalError("no such op kind");
}

}  // namespace

absl::StatusOr<BoundOp> BindOp(const OpContext& context,
                               const Instruction& instruction) {
  absl::StatusOr<BoundOp> op = BindByFamily(context, instruction);
  if (op.ok()) return op;
  return absl::Status(
      op.status().code(),
      absl::StrCat(instruction.name, " (", OpKindName(instruction.kind), ", ",
                   AttributesToString(instruction.attributes),
                   "): ", op.status().message()));
}

absl::StatusOr<std::unique_ptr<PreparedProgram>> PrepareProgram(
    const OpContext& context) {
  std::vector<BoundOp> ops;
  ops.reserve(context.program->instructions.size());
  for (const Instruction& instruction : context.program->instructions) {
    ASSIGN_OR_RETURN(BoundOp op, BindOp(context, instruction));
    ops.push_back(std::move(op));
  }
  return std::make_unique<PreparedProgram>(context.program, std::move(ops));
}

}  // namespace millrace
