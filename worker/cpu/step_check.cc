#include "worker/cpu/step_check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "kernels/pointwise/cast.h"

namespace millrace {
namespace {

template <typename T>
bool AllFinite(const std::byte* data, int64_t num_bytes) {
  const T* values = reinterpret_cast<const T*>(data);
  return std::all_of(values, values + num_bytes / int64_t{sizeof(T)},
                     [](T value) { return std::isfinite(value); });
}

}  // namespace

StepCheck::StepCheck(const Program* program, const Arenas* arenas)
    : program_(*program),
      arenas_(*arenas),
      begins_with_numbers_(program->instructions.size()),
      findings_(program) {}

bool StepCheck::AreNumbers(const Operands& buffers) const {
  return std::all_of(buffers.begin(), buffers.end(), [this](BufferId id) {
    const Buffer& buffer = program_.buffers[id];
    const std::byte* data = arenas_.At(buffer);
    switch (buffer.dtype) {
      case DType::kFloat32:
        return AllFinite<float>(data, buffer.bytes);
      case DType::kFloat64:
        return AllFinite<double>(data, buffer.bytes);
      default:
        return true;
    }
  });
}

void StepCheck::Before(InstructionId id) {
  begins_with_numbers_[id] =
      AreNumbers(OperandsToCheck(program_.layout, program_.instructions[id]));
}

float StepCheck::AmaxOf(const Instruction& instruction) const {
  const auto floats = [&](BufferId id) {
    return reinterpret_cast<const float*>(arenas_.At(program_.buffers[id]));
  };
  if (instruction.kind == OpKind::kWeightAmax) {
    return LargestAmax({floats(instruction.outputs.at(0)), kFloat8Matrices});
  }
  const auto& attributes = std::get<QuantizeAttributes>(instruction.attributes);
  if (instruction.kind == OpKind::kQuantizeFloat8) {
    return *floats(attributes.amax_given ? instruction.inputs.at(1)
                                         : instruction.outputs.at(1));
  }
  // With scales for blocks, nobody has found that of the whole tensor.
  float amax = 0;
  const absl::Status status =
      Amax({.amax = &amax,
            .x = floats(instruction.inputs.at(0)),
            .num_elements = attributes.rows * attributes.cols},
           /*num_threads=*/1);
  CHECK(status.ok()) << status;
  return amax;
}

void StepCheck::After(InstructionId id) {
  const Instruction& instruction = program_.instructions[id];
  if (HasFloat8Amax(instruction.kind)) {
    const float amax = AmaxOf(instruction);
    std::lock_guard<std::mutex> lock(mutex_);
    findings_.NoteAmax(id, amax);
  }
  if (begins_with_numbers_[id] == 0 ||
      AreNumbers(ResultsToCheck(instruction))) {
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  findings_.NoteOrigin(id);
}

}  // namespace millrace
