#include "worker/cpu/step_check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/pointwise/cast.h"
#include "planner/program/op_table.h"

namespace millrace {
namespace {

template <typename T>
bool AllFinite(const std::byte* data, int64_t num_bytes) {
  const T* values = reinterpret_cast<const T*>(data);
  return std::all_of(values, values + num_bytes / int64_t{sizeof(T)},
                     [](T value) { return std::isfinite(value); });
}

// "'layers.3/mlp/down' of micro-batch 1 (forward)".
std::string PlaceOf(const Instruction& instruction) {
  std::string text = absl::StrCat("'", instruction.name, "'");
  if (instruction.microbatch_idx >= 0) {
    absl::StrAppend(&text, " of micro-batch ", instruction.microbatch_idx);
  }
  return absl::StrCat(text, " (", PhaseName(instruction.phase), ")");
}

}  // namespace

StepCheck::StepCheck(const Program* program, const Arenas* arenas)
    : program_(*program),
      arenas_(*arenas),
      begins_with_numbers_(program->instructions.size()) {}

bool StepCheck::AreNumbers(BufferId id) const {
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
}

void StepCheck::Before(InstructionId id) {
  const Instruction& instruction = program_.instructions[id];
  begins_with_numbers_[id] =
      std::all_of(instruction.inputs.begin(), instruction.inputs.end(),
                  [this](BufferId input) { return AreNumbers(input); });
}

float StepCheck::AmaxOf(const Instruction& instruction) const {
  const auto floats = [&](BufferId id) {
    return reinterpret_cast<const float*>(arenas_.At(program_.buffers[id]));
  };
  if (instruction.kind == OpKind::kWeightAmax) {
    const float* const amaxes = floats(instruction.outputs.at(0));
    // NaN above all, as it counts.
    return *std::max_element(
        amaxes, amaxes + kFloat8Matrices,
        [](float a, float b) { return !std::isnan(a) && !(b <= a); });
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

void StepCheck::NoteAmax(InstructionId id) {
  const float amax = AmaxOf(program_.instructions[id]);
  std::lock_guard<std::mutex> lock(mutex_);
  if (amax > largest_amax_ || (amax == largest_amax_ && id < largest_)) {
    largest_amax_ = amax;
    largest_ = id;
  }
}

void StepCheck::After(InstructionId id) {
  const Instruction& instruction = program_.instructions[id];
  if (MakesFloat8Copies(instruction.kind) ||
      instruction.kind == OpKind::kWeightAmax) {
    NoteAmax(id);
  }
  if (begins_with_numbers_[id] == 0 || IsCollective(instruction.kind) ||
      IsTransfer(instruction.kind)) {
    return;
  }
  const size_t num_results =
      std::min(instruction.outputs.size(), NumResults(instruction.kind));
  for (size_t i = 0; i < num_results; ++i) {
    if (AreNumbers(instruction.outputs[i])) continue;
    std::lock_guard<std::mutex> lock(mutex_);
    if (origin_ < 0 || id < origin_) origin_ = id;
    return;
  }
}

std::string StepCheck::Origin() const {
  if (origin_ < 0) return "";
  const Instruction& instruction = program_.instructions[origin_];
  return absl::StrCat(OpKindName(instruction.kind), " ", PlaceOf(instruction));
}

std::string StepCheck::LargestIn() const {
  return largest_ < 0 ? "" : PlaceOf(program_.instructions[largest_]);
}

}  // namespace millrace
