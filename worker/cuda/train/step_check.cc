#include "worker/cuda/train/step_check.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cuda/amax.h"
#include "kernels/cuda/count_not_finite.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

// None for formats that cannot hold what is not a number, and for workspaces.
std::optional<ValueFormat> ValueFormatOf(DType dtype, bool reads_float8) {
  switch (dtype) {
    case DType::kFloat32:
      return ValueFormat::kFloat32;
    case DType::kFloat64:
      return ValueFormat::kFloat64;
    case DType::kBfloat16:
      return ValueFormat::kBfloat16;
    case DType::kFloat8E4m3:
      if (reads_float8) return ValueFormat::kFloat8E4m3;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

// Attention's copies have room around them that nobody writes. Their units,
// which are no numbers where the copies are none, tell as much.
bool ReadsFloat8(const Instruction& instruction) {
  return instruction.kind != OpKind::kQuantizeAttention &&
         instruction.kind != OpKind::kFloat8AttentionForward;
}

}  // namespace

absl::StatusOr<CudaStepCheck> CudaStepCheck::Create(
    const Program* program, const DeviceArenas* arenas) {
  ASSIGN_OR_RETURN(auto counts, DeviceBuffer<Counts>::Allocate(
                                    program->instructions.size()));
  return CudaStepCheck(program, arenas, std::move(counts));
}

absl::Status CudaStepCheck::Begin(cudaStream_t stream) {
  return CudaStatus(cudaMemsetAsync(counts_.data(), 0,
                                    counts_.size() * sizeof(Counts), stream),
                    "zero the counts of a checked step");
}

absl::Status CudaStepCheck::Count(const Operands& buffers, bool reads_float8,
                                  uint64_t* count, cudaStream_t stream) const {
  for (const BufferId id : buffers) {
    const Buffer& buffer = program_->buffers[static_cast<size_t>(id)];
    const std::optional<ValueFormat> format =
        ValueFormatOf(buffer.dtype, reads_float8);
    if (!format.has_value()) continue;
    RETURN_IF_ERROR(LaunchCountNotFinite(
        {.count = count,
         .x = arenas_->At(buffer),
         .num_values = buffer.bytes / DTypeBytes(buffer.dtype),
         .format = *format},
        stream));
  }
  return absl::OkStatus();
}

absl::Status CudaStepCheck::Before(InstructionId id, cudaStream_t stream) {
  const Instruction& instruction =
      program_->instructions[static_cast<size_t>(id)];
  // Nobody asks where a collective or a transfer began.
  if (ResultsToCheck(instruction).empty()) return absl::OkStatus();
  return Count(OperandsToCheck(program_->layout, instruction),
               ReadsFloat8(instruction), &counts_.data()[id].operands, stream);
}

absl::Status CudaStepCheck::After(InstructionId id, cudaStream_t stream) {
  const Instruction& instruction =
      program_->instructions[static_cast<size_t>(id)];
  Counts& counts = counts_.data()[id];
  if (HasFloat8Amax(instruction.kind)) {
    RETURN_IF_ERROR(FindAmax(instruction, counts.amaxes.data(), stream));
  }
  return Count(ResultsToCheck(instruction), ReadsFloat8(instruction),
               &counts.results, stream);
}

absl::Status CudaStepCheck::FindAmax(const Instruction& instruction,
                                     float* amaxes, cudaStream_t stream) const {
  const auto at = [this](BufferId id) {
    return arenas_->At(program_->buffers[static_cast<size_t>(id)]);
  };
  const auto copy = [&](BufferId from, size_t count) {
    return CudaStatus(cudaMemcpyAsync(amaxes, at(from), count * sizeof(float),
                                      cudaMemcpyDeviceToDevice, stream),
                      "keep the magnitudes of 8-bit copies");
  };
  if (instruction.kind == OpKind::kWeightAmax) {
    return copy(instruction.outputs.at(0), kFloat8Matrices);
  }
  const auto& attributes = std::get<QuantizeAttributes>(instruction.attributes);
  if (instruction.kind == OpKind::kQuantizeFloat8) {
    return copy(attributes.amax_given ? instruction.inputs.at(1)
                                      : instruction.outputs.at(1),
                1);
  }
  // With scales for blocks, nobody has found that of the whole tensor. On a GPU
  // it is bf16.
  return LaunchAmaxBf16({.amax = amaxes,
                         .x = at(instruction.inputs.at(0)),
                         .x_row_stride = attributes.cols,
                         .rows = attributes.rows,
                         .columns = attributes.cols},
                        stream);
}

absl::StatusOr<StepFindings> CudaStepCheck::Read() const {
  std::vector<Counts> counts(counts_.size());
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(counts.data(), counts_.data(), counts.size() * sizeof(Counts),
                 cudaMemcpyDeviceToHost),
      "read the counts of a checked step"));
  StepFindings findings(program_);
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto id = static_cast<InstructionId>(i);
    if (HasFloat8Amax(program_->instructions[i].kind)) {
      findings.NoteAmax(id, LargestAmax(counts[i].amaxes));
    }
    if (counts[i].operands == 0 && counts[i].results != 0) {
      findings.NoteOrigin(id);
    }
  }
  return findings;
}

}  // namespace millrace
