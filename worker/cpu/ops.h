// Binds instructions to what runs them on a CPU: operands resolved, kernels
// planned, peers looked up. Running a bound op decides and allocates nothing.

#ifndef MILLRACE_WORKER_CPU_OPS_H_
#define MILLRACE_WORKER_CPU_OPS_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "planner/program/program.h"
#include "worker/cpu/executor.h"
#include "worker/train/op_binders.h"
#include "worker/train/op_context.h"

namespace millrace {

using CpuBinder = std::function<absl::StatusOr<BoundOp>(
    const OpContext& context, const Instruction& instruction)>;
using CpuBinders = OpBinders<CpuBinder>;
// The binders of all op kinds that CPUs run.
const CpuBinders& AllCpuBinders();

// Each adds the binders of one file.
void RegisterLayerOps(CpuBinders& binders);
void RegisterFloat8Ops(CpuBinders& binders);
void RegisterWeightOps(CpuBinders& binders);
void RegisterFloat8BlockOps(CpuBinders& binders);
void RegisterFloat8AttentionOps(CpuBinders& binders);
void RegisterVocabularyOps(CpuBinders& binders);
void RegisterStepOps(CpuBinders& binders);
void RegisterCommunicationOps(CpuBinders& binders);

// Binds an op of any kind that has a binder. Errors name the instruction.
absl::StatusOr<BoundOp> BindOp(const OpContext& context,
                               const Instruction& instruction);

// All of a Program; InvalidArgument where a kind has no binder. Call
// context.kernels->AllocateScratch() before running it.
absl::StatusOr<std::unique_ptr<PreparedProgram>> PrepareProgram(
    const OpContext& context);

// Returns the factor that scales the gradient so that its norm is at most
// `clip_norm` (0: no clipping). A small constant keeps a norm of zero harmless;
// PyTorch's clip_grad_norm_ uses the same.
double ClipScale(double squared_norm, double clip_norm);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CPU_OPS_H_
