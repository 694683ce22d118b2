#include "worker/cpu/stepper.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/cpu/ops.h"
#include "worker/train/arena.h"
#include "worker/train/initialize.h"
#include "worker/train/op_context.h"

namespace millrace {
namespace {

class ArenaStepper final : public CpuStepper {
 public:
  ArenaStepper(const StepperOptions& options, Arenas arenas)
      : options_(options),
        arenas_(std::move(arenas)),
        kernels_(options.num_threads, options.job.model.rope_factors) {
    inputs_ = {
        .step = options.step,
        .learning_rate = LearningRateAt(options.job.training, options.step)};
  }

  absl::Status Bind() {
    const Program& program = *options_.program;
    const OpContext context = {.program = &program,
                               .layout = program.layout,
                               .coordinates = {},
                               .arenas = &arenas_,
                               .kernels = &kernels_,
                               .inputs = &inputs_,
                               .training = &options_.job.training,
                               .batches = options_.batches,
                               .communicators = nullptr};
    for (const Instruction& instruction : program.instructions) {
      ASSIGN_OR_RETURN(BoundOp op, BindOp(context, instruction));
      ops_.push_back(std::move(op));
    }
    return kernels_.AllocateScratch();
  }

  void Initialize() {
    InitializeParameters(options_.job.model, program().layout, {},
                         program().parameters, options_.job.training.seed,
                         Floats(program().parameters_buffer));
  }

  const Program& program() const override { return *options_.program; }

  absl::Status Run(InstructionId id) override {
    const absl::Status status = ops_[static_cast<size_t>(id)]();
    if (status.ok()) return status;
    const Instruction& instruction =
        program().instructions[static_cast<size_t>(id)];
    return absl::Status(
        status.code(),
        absl::StrCat("cpu: ", instruction.name, " (",
                     OpKindName(instruction.kind), "): ", status.message()));
  }

  absl::StatusOr<std::vector<float>> Read(BufferId id) override {
    const Buffer& buffer = BufferOf(id);
    return ValuesFromMemory(buffer.dtype, arenas_.At(buffer),
                            NumElements(buffer));
  }

  absl::Status Write(BufferId id, const std::vector<float>& values) override {
    const Buffer& buffer = BufferOf(id);
    CHECK(static_cast<int64_t>(values.size()) == NumElements(buffer));
    ValuesToMemory(values, buffer.dtype, arenas_.At(buffer));
    return absl::OkStatus();
  }

  std::vector<StatePiece> StatePieces() override {
    const bool has_moments = program().layout.moments == MomentFormat::kFloat32;
    return DescribeState(
        program().parameters, program().layout, {},
        {.parameters = Floats(program().parameters_buffer),
         .exp_avg = has_moments ? Floats(program().exp_avg_buffer) : nullptr,
         .exp_avg_sq =
             has_moments ? Floats(program().exp_avg_sq_buffer) : nullptr});
  }

 private:
  const Buffer& BufferOf(BufferId id) const {
    return program().buffers[static_cast<size_t>(id)];
  }
  float* Floats(BufferId id) const {
    return reinterpret_cast<float*>(arenas_.At(BufferOf(id)));
  }

  const StepperOptions options_;
  const Arenas arenas_;
  KernelCache kernels_;
  StepInputs inputs_;
  std::vector<BoundOp> ops_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CpuStepper>> CpuStepper::Create(
    const StepperOptions& options) {
  const Program& program = *options.program;
  if (program.layout.num_ranks() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a Program of ", program.layout.num_ranks(),
                     " ranks cannot run without its peers; expected one rank"));
  }
  RETURN_IF_ERROR(CheckBindings(AllCpuBinders().bound(), {&program}));
  ASSIGN_OR_RETURN(MemoryBlock persistent,
                   MemoryBlock::Allocate(program.persistent_arena_bytes));
  ASSIGN_OR_RETURN(MemoryBlock step,
                   MemoryBlock::Allocate(program.step_arena_bytes));
  auto stepper = std::make_unique<ArenaStepper>(
      options,
      Arenas{.persistent = std::move(persistent), .step = std::move(step)});
  RETURN_IF_ERROR(stepper->Bind());
  stepper->Initialize();
  return stepper;
}

}  // namespace millrace
