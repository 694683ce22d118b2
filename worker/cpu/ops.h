// Binds instructions to what runs them on a CPU: operands resolved, kernels
// planned, peers looked up. Running a bound op decides and allocates nothing.

#ifndef MILLRACE_WORKER_CPU_OPS_H_
#define MILLRACE_WORKER_CPU_OPS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "planner/program/program.h"
#include "worker/cpu/executor.h"
#include "worker/train/op_context.h"

namespace millrace {

// Any op kind. Errors name the instruction.
absl::StatusOr<BoundOp> BindOp(const OpContext& context,
                               const Instruction& instruction);

// All of a Program. Call context.kernels->AllocateScratch() before running it.
absl::StatusOr<std::unique_ptr<PreparedProgram>> PrepareProgram(
    const OpContext& context);

// By family; BindOp chooses.
absl::StatusOr<BoundOp> BindLayerOp(const OpContext& context,
                                    const Instruction& instruction);
absl::StatusOr<BoundOp> BindVocabularyOp(const OpContext& context,
                                         const Instruction& instruction);
absl::StatusOr<BoundOp> BindStepOp(const OpContext& context,
                                   const Instruction& instruction);
absl::StatusOr<BoundOp> BindCommunicationOp(const OpContext& context,
                                            const Instruction& instruction);

// How much the gradient is scaled so that its norm is at most `clip_norm` (0:
// no clipping). The small constant keeps a norm of zero harmless, and is the
// one PyTorch's clip_grad_norm_ uses.
double ClipScale(double squared_norm, double clip_norm);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CPU_OPS_H_
