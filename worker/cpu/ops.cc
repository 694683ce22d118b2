#include "worker/cpu/ops.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/pointwise/cast.h"
#include "worker/train/stepper.h"

namespace millrace {
const CpuBinders& AllCpuBinders() {
  static const CpuBinders* const kBinders = [] {
    auto* binders = new CpuBinders(
        "cpu", {{Precision::kFloat32},
                {Precision::kFloat32, GemmFormat::kFloat8},
                {Precision::kFloat32, GemmFormat::kFloat8Blocks}});
    RegisterLayerOps(*binders);
    RegisterFloat8Ops(*binders);
    RegisterWeightOps(*binders);
    RegisterFloat8BlockOps(*binders);
    RegisterFloat8AttentionOps(*binders);
    RegisterVocabularyOps(*binders);
    RegisterStepOps(*binders);
    RegisterCommunicationOps(*binders);
    return binders;
  }();
  return *kBinders;
}

namespace {

// `op`, and then a pass over its main output for the largest magnitude.
BoundOp ThenAmax(const OpContext& context, const Instruction& instruction,
                 BoundOp op) {
  const size_t output = MainOutput(instruction.kind);
  const AmaxArgs args = {
      .amax =
          context.Output<float>(instruction, instruction.outputs.size() - 1),
      .x = context.Output<float>(instruction, output),
      .num_elements =
          NumElements(context.program->buffers[instruction.outputs[output]])};
  return [args, op = std::move(op),
          num_threads = context.kernels->num_threads()]() -> absl::Status {
    RETURN_IF_ERROR(op());
    *args.amax = 0;
    return Amax(args, num_threads);
  };
}

}  // namespace

absl::StatusOr<BoundOp> BindOp(const OpContext& context,
                               const Instruction& instruction) {
  const CpuBinders& binders = AllCpuBinders();
  RETURN_IF_ERROR(CheckBinding(binders.bound(), instruction));
  absl::StatusOr<BoundOp> op =
      binders.For(instruction.kind)(context, instruction);
  if (op.ok()) {
    if (!FindsAmax(instruction.attributes)) return op;
    return ThenAmax(context, instruction, *std::move(op));
  }
  return absl::Status(
      op.status().code(),
      absl::StrCat(instruction.name, " (", OpKindName(instruction.kind), ", ",
                   AttributesToString(instruction.attributes),
                   "): ", op.status().message()));
}

absl::StatusOr<std::unique_ptr<PreparedProgram>> PrepareProgram(
    const OpContext& context) {
  RETURN_IF_ERROR(CheckBindings(AllCpuBinders().bound(), {context.program}));
  std::vector<BoundOp> ops;
  ops.reserve(context.program->instructions.size());
  for (const Instruction& instruction : context.program->instructions) {
    ASSIGN_OR_RETURN(BoundOp op, BindOp(context, instruction));
    ops.push_back(std::move(op));
  }
  return std::make_unique<PreparedProgram>(context.program, std::move(ops));
}

}  // namespace millrace
