#include "worker/cpu/step_check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
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

void StepCheck::NoteAmax(InstructionId id) {
  const Instruction& instruction = program_.instructions[id];
  const bool given =
      std::get<QuantizeAttributes>(instruction.attributes).amax_given;
  const BufferId buffer =
      given ? instruction.inputs.at(1) : instruction.outputs.at(1);
  const float amax =
      *reinterpret_cast<const float*>(arenas_.At(program_.buffers[buffer]));
  std::lock_guard<std::mutex> lock(mutex_);
  if (amax > largest_amax_ || (amax == largest_amax_ && id < largest_)) {
    largest_amax_ = amax;
    largest_ = id;
  }
}

void StepCheck::After(InstructionId id) {
  const Instruction& instruction = program_.instructions[id];
  if (instruction.kind == OpKind::kQuantizeFloat8) NoteAmax(id);
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
