#include "worker/cuda/ops/ops.h"

#include <cuda_runtime.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/amax.h"
#include "kernels/cuda/status.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/train/stepper.h"

namespace millrace {
namespace {

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

const CudaBinders& AllCudaBinders() {
  static const CudaBinders* const kBinders = [] {
    auto* binders = new CudaBinders(
        "cuda", {{Precision::kFloat32},
                 {Precision::kBfloat16},
                 {Precision::kBfloat16, GemmFormat::kFloat8},
                 {Precision::kBfloat16, GemmFormat::kFloat8Blocks}});
    RegisterCudaLayerOps(*binders);
    RegisterCudaFloat8Ops(*binders);
    RegisterCudaWeightOps(*binders);
    RegisterCudaFloat8BlockOps(*binders);
    RegisterCudaAttentionOps(*binders);
    RegisterCudaVocabularyOps(*binders);
    RegisterCudaStepOps(*binders);
    RegisterCudaCommunicationOps(*binders);
    return binders;
  }();
  return *kBinders;
}

absl::StatusOr<CudaOp> BindCudaOp(const CudaOpContext& context,
                                  const Instruction& instruction) {
  const CudaBinders& binders = AllCudaBinders();
  RETURN_IF_ERROR(CheckBinding(binders.bound(), instruction));
  absl::StatusOr<CudaOp> op =
      binders.For(instruction.kind)(context, instruction);
  if (op.ok()) {
    float* const amax = AmaxOf(context, instruction);
    if (amax == nullptr) return op;
    return CudaOp([op = *std::move(op), amax](cudaStream_t stream) {
      const absl::Status zeroed = CudaStatus(
          cudaMemsetAsync(amax, 0, sizeof(float), stream), "zero amax");
      return zeroed.ok() ? op(stream) : zeroed;
    });
  }
  return absl::Status(
      op.status().code(),
      absl::StrCat(instruction.name, " (", OpKindName(instruction.kind), ", ",
                   AttributesToString(instruction.attributes),
                   "): ", op.status().message()));
}

float* AmaxOf(const CudaOpContext& context, const Instruction& instruction) {
  if (!FindsAmax(instruction.attributes)) return nullptr;
  return context.Output<float>(instruction, instruction.outputs.size() - 1);
}

CudaOp ThenAmax(const CudaOpContext& context, const Instruction& instruction,
                CudaOp op) {
  float* const amax = AmaxOf(context, instruction);
  if (amax == nullptr) return op;
  CHECK(IsBf16(context)) << instruction.name;
  const size_t output = MainOutput(instruction.kind);
  const int64_t num_elements =
      NumElements(context.program->buffers[instruction.outputs.at(output)]);
  const AmaxBf16Args args = {.amax = amax,
                             .x = context.Output<void>(instruction, output),
                             .x_row_stride = num_elements,
                             .rows = 1,
                             .columns = num_elements};
  return [op = std::move(op), args](cudaStream_t stream) -> absl::Status {
    RETURN_IF_ERROR(op(stream));
    return LaunchAmaxBf16(args, stream);
  };
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
