#include "worker/cuda/train/stepper.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "worker/cuda/device/device_arenas.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/device/op.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/cuda/ops/ops.h"
#include "worker/cuda/train/step_inputs.h"

namespace millrace {
namespace {

// [rows, cols, n] -> [cols, rows, n].
std::vector<float> SwapOuterDims(const std::vector<float>& values, int64_t rows,
                                 int64_t cols) {
  const int64_t n = static_cast<int64_t>(values.size()) / (rows * cols);
  std::vector<float> out(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      std::copy_n(values.begin() + (row * cols + col) * n, n,
                  out.begin() + (col * rows + row) * n);
    }
  }
  return out;
}

class CudaStepper final : public Stepper {
 public:
  CudaStepper(const StepperOptions& options, DeviceArenas arenas,
              CudaStream stream)
      : options_(options),
        arenas_(std::move(arenas)),
        stream_(std::move(stream)) {}

  absl::Status Prepare() {
    RETURN_IF_ERROR(PoisonStepMemory());
    ASSIGN_OR_RETURN(kernels_, CudaKernelCache::Create());
    kernels_->set_rope_factors(options_.job.model.rope_factors);
    ASSIGN_OR_RETURN(feed_,
                     StepInputFeed::Create({.job = options_.job,
                                            .layout = program().layout,
                                            .coordinates = {},
                                            .batches = options_.batches}));
    auto* scalars = reinterpret_cast<double*>(
        arenas_.At(BufferOf(program().scalars_buffer)));
    ASSIGN_OR_RETURN(const int64_t num_documents,
                     feed_->EnqueueTrainingStep(options_.step, StepRequest{},
                                                scalars, stream_.get()));
    const CudaOpContext context = {.program = &program(),
                                   .layout = program().layout,
                                   .coordinates = {},
                                   .arenas = &arenas_,
                                   .kernels = kernels_.get(),
                                   .inputs = &feed_->inputs(),
                                   .training = &options_.job.training,
                                   .communicators = nullptr,
                                   .num_documents = num_documents,
                                   .deterministic = true};
    for (const Instruction& instruction : program().instructions) {
      ASSIGN_OR_RETURN(CudaOp op, BindCudaOp(context, instruction));
      ops_.push_back(std::move(op));
      if (instruction.kind != OpKind::kAttentionForward &&
          instruction.kind != OpKind::kFloat8AttentionForward) {
        continue;
      }
      const auto& attributes =
          std::get<AttentionAttributes>(instruction.attributes);
      if (KeepsLseBySequence(context, attributes)) {
        lse_by_sequence_.emplace(instruction.outputs.at(1), attributes);
      }
    }
    return Synchronize();
  }

  const Program& program() const override { return *options_.program; }

  absl::Status Run(InstructionId id) override {
    absl::Status status = ops_[static_cast<size_t>(id)](stream_.get());
    if (status.ok()) status = Synchronize();
    if (status.ok()) return status;
    const Instruction& instruction =
        program().instructions[static_cast<size_t>(id)];
    return absl::Status(
        status.code(),
        absl::StrCat("gpu: ", instruction.name, " (",
                     OpKindName(instruction.kind), "): ", status.message()));
  }

  absl::StatusOr<std::vector<float>> Read(BufferId id) override {
    const Buffer& buffer = BufferOf(id);
    std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes));
    RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(bytes.data(), arenas_.At(buffer), bytes.size(),
                        cudaMemcpyDeviceToHost, stream_.get()),
        "copy a buffer from the device"));
    RETURN_IF_ERROR(Synchronize());
    std::vector<float> values =
        ValuesFromMemory(buffer.dtype, bytes.data(), NumElements(buffer));
    const auto lse = lse_by_sequence_.find(id);
    if (lse == lse_by_sequence_.end()) return values;
    const AttentionAttributes& a = lse->second;
    return SwapOuterDims(values, a.num_sequences, a.num_heads);
  }

  absl::Status Write(BufferId id, const std::vector<float>& values) override {
    const Buffer& buffer = BufferOf(id);
    CHECK(static_cast<int64_t>(values.size()) == NumElements(buffer));
    const auto lse = lse_by_sequence_.find(id);
    std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes));
    if (lse == lse_by_sequence_.end()) {
      ValuesToMemory(values, buffer.dtype, bytes.data());
    } else {
      const AttentionAttributes& a = lse->second;
      ValuesToMemory(SwapOuterDims(values, a.num_heads, a.num_sequences),
                     buffer.dtype, bytes.data());
    }
    RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(arenas_.At(buffer), bytes.data(), bytes.size(),
                        cudaMemcpyHostToDevice, stream_.get()),
        "copy a buffer to the device"));
    return Synchronize();
  }

 private:
  absl::Status PoisonStepMemory() {
    const Buffer all = {.name = "step memory",
                        .dtype = DType::kFloat32,
                        .dims = {},
                        .arena = Arena::kStep,
                        .offset_bytes = 0,
                        .bytes = program().step_arena_bytes};
    return CudaStatus(
        cudaMemsetAsync(arenas_.At(all), 0xff, static_cast<size_t>(all.bytes),
                        stream_.get()),
        "fill step memory");
  }

  absl::Status Synchronize() {
    return CudaStatus(cudaStreamSynchronize(stream_.get()),
                      "wait for the device");
  }

  const Buffer& BufferOf(BufferId id) const {
    return program().buffers[static_cast<size_t>(id)];
  }

  const StepperOptions options_;
  const DeviceArenas arenas_;
  const CudaStream stream_;
  std::unique_ptr<CudaKernelCache> kernels_;
  std::unique_ptr<StepInputFeed> feed_;
  std::vector<CudaOp> ops_;
  // Read and written in the order of planner/program/op_table.cc all the same.
  std::map<BufferId, AttentionAttributes> lse_by_sequence_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Stepper>> CreateCudaStepper(
    const StepperOptions& options) {
  const Program& program = *options.program;
  if (program.layout.num_ranks() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a Program of ", program.layout.num_ranks(),
                     " ranks cannot run without its peers; expected one rank"));
  }
  RETURN_IF_ERROR(CheckBindings(AllCudaBinders().bound(), {&program}));
  ASSIGN_OR_RETURN(DeviceArenas arenas,
                   DeviceArenas::Allocate(program.persistent_arena_bytes,
                                          program.step_arena_bytes));
  ASSIGN_OR_RETURN(CudaStream stream,
                   CudaStream::Create(CudaStream::Priority::kNormal));
  auto stepper = std::make_unique<CudaStepper>(options, std::move(arenas),
                                               std::move(stream));
  RETURN_IF_ERROR(stepper->Prepare());
  return stepper;
}

}  // namespace millrace
