// The binders of GPU ops, by file, and what they share. BindCudaOp (op.h) takes
// an instruction's binder.

#ifndef MILLRACE_WORKER_CUDA_OPS_OPS_H_
#define MILLRACE_WORKER_CUDA_OPS_OPS_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "kernels/cuda/element_type.h"
#include "planner/program/program.h"
#include "worker/cuda/device/op.h"
#include "worker/train/op_binders.h"

namespace millrace {

using CudaBinder = std::function<absl::StatusOr<CudaOp>(
    const CudaOpContext& context, const Instruction& instruction)>;
using CudaBinders = OpBinders<CudaBinder>;
// The binders of all op kinds that GPUs run.
const CudaBinders& AllCudaBinders();

// Each adds the binders of one file.
void RegisterCudaLayerOps(CudaBinders& binders);
void RegisterCudaFloat8Ops(CudaBinders& binders);
void RegisterCudaWeightOps(CudaBinders& binders);
void RegisterCudaFloat8BlockOps(CudaBinders& binders);
void RegisterCudaAttentionOps(CudaBinders& binders);
void RegisterCudaVocabularyOps(CudaBinders& binders);
void RegisterCudaStepOps(CudaBinders& binders);
void RegisterCudaCommunicationOps(CudaBinders& binders);

// The element type of activations and parameters. fp32 always takes plain
// kernels; bf16 takes them where the tuned kernel refuses the shape.
ElementType ElementTypeOf(const CudaOpContext& context);
inline bool IsBf16(const CudaOpContext& context) {
  return ElementTypeOf(context) == ElementType::kBfloat16;
}
// Whether `buffer` is fp32. Parameters of norms and all gradients are, in
// either precision.
inline bool IsFp32(const CudaOpContext& context, BufferId buffer) {
  return context.program->buffers[buffer].dtype == DType::kFloat32;
}

// Where the op leaves the largest magnitude of its main output; null if it does
// not look for it (FindsAmax()). BindCudaOp() zeroes it before the op runs.
float* AmaxOf(const CudaOpContext& context, const Instruction& instruction);
// `op`, whose kernel does not find it, and then a pass over its bf16 output
// that does, if it is wanted.
CudaOp ThenAmax(const CudaOpContext& context, const Instruction& instruction,
                CudaOp op);

// Whether attention's log-sum-exps lie sequence by sequence, [num_sequences, N,
// sequence_length], and not as planner/program/op_table.cc has them: under the
// fast kernels, where every sequence is one document.
bool KeepsLseBySequence(const CudaOpContext& context,
                        const AttentionAttributes& attributes);

// Scratch memory for one kernel at a time, aligned as buffers are; null for
// none: the Program's where it has some, else the kernel cache's. Internal if
// the Program's is too small: planner/program/workspace.h is wrong then.
absl::StatusOr<void*> ScratchOf(const CudaOpContext& context,
                                int64_t num_bytes);
// The memory of output `i` of the instruction, which is a workspace.
absl::StatusOr<void*> WorkspaceOf(const CudaOpContext& context,
                                  const Instruction& instruction, size_t i,
                                  int64_t num_bytes);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_OPS_OPS_H_
