#include "worker/cuda/ops/ops.h"

#include "absl/strings/str_cat.h"
#include "worker/cuda/ops/kernel_cache.h"

namespace millrace {
namespace {

absl::StatusOr<CudaOp> BindByFamily(const CudaOpContext& context,
                                    const Instruction& instruction) {
  switch (instruction.kind) {
    case OpKind::kRmsNormForward:
    case OpKind::kResidualRmsNormForward:
    case OpKind::kRmsNormBackward:
    case OpKind::kAdd:
    case OpKind::kGemm:
    case OpKind::kSwigluForward:
    case OpKind::kSwigluBackward:
      return BindCudaLayerOp(context, instruction);
    case OpKind::kRope:
    case OpKind::kAttentionForward:
    case OpKind::kAttentionBackward:
      return BindCudaAttentionOp(context, instruction);
    case OpKind::kEmbeddingForward:
    case OpKind::kEmbeddingBackward:
    case OpKind::kLinearCrossEntropy:
    case OpKind::kCrossEntropyStats:
    case OpKind::kCrossEntropyGradient:
    case OpKind::kCrossEntropyLoss:
      return BindCudaVocabularyOp(context, instruction);
    case OpKind::kLoadBatch:
    case OpKind::kZero:
    case OpKind::kAccumulateGradients:
    case OpKind::kRoundGradients:
    case OpKind::kWidenGradients:
    case OpKind::kSquaredNorm:
    case OpKind::kClipFactor:
    case OpKind::kAdamW:
    case OpKind::kCastParameters:
      return BindCudaStepOp(context, instruction);
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kAllReduce:
    case OpKind::kSend:
    case OpKind::kReceive:
      return BindCudaCommunicationOp(context, instruction);
  }
  return absl::InternalError("no such op kind");
}

// All of `buffer`, if it holds that much.
absl::StatusOr<void*> RoomIn(const CudaOpContext& context, const Buffer& buffer,
                             int64_t num_bytes) {
  if (num_bytes <= buffer.bytes) {
    return static_cast<void*>(context.arenas->At(buffer));
  }
  return absl::InternalError(
      absl::StrCat("its kernel wants a workspace of ", num_bytes,
                   " bytes, but ", buffer.name, " has ", buffer.bytes,
                   ": planner/program/workspace.h must allow for more"));
}

}  // namespace

absl::StatusOr<CudaOp> BindCudaOp(const CudaOpContext& context,
                                  const Instruction& instruction) {
  absl::StatusOr<CudaOp> op = BindByFamily(context, instruction);
  if (op.ok()) return op;
  return absl::Status(
      op.status().code(),
      absl::StrCat(instruction.name, " (", OpKindName(instruction.kind), ", ",
                   AttributesToString(instruction.attributes),
                   "): ", op.status().message()));
}

ElementType ElementTypeOf(const CudaOpContext& context) {
  return context.layout.precision == Precision::kBfloat16
             ? ElementType::kBfloat16
             : ElementType::kFloat32;
}

absl::StatusOr<void*> ScratchOf(const CudaOpContext& context,
                                int64_t num_bytes) {
  if (num_bytes == 0) return nullptr;
  const Program& program = *context.program;
  if (program.scratch_buffer < 0) return context.kernels->Scratch(num_bytes);
  return RoomIn(context, program.buffers[program.scratch_buffer], num_bytes);
}

absl::StatusOr<void*> WorkspaceOf(const CudaOpContext& context,
                                  const Instruction& instruction, size_t i,
                                  int64_t num_bytes) {
  return RoomIn(context, context.program->buffers[instruction.outputs.at(i)],
                num_bytes);
}

}  // namespace millrace
