#include "worker/train/step_findings.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "planner/program/op_table.h"

namespace millrace {
namespace {

// "'layers.3/mlp/down' of micro-batch 1 (forward)".
std::string PlaceOf(const Instruction& instruction) {
  std::string text = absl::StrCat("'", instruction.name, "'");
  if (instruction.microbatch_idx >= 0) {
    absl::StrAppend(&text, " of micro-batch ", instruction.microbatch_idx);
  }
  return absl::StrCat(text, " (", PhaseName(instruction.phase), ")");
}

}  // namespace

Operands OperandsToCheck(const Layout& layout, const Instruction& instruction) {
  Operands operands = instruction.inputs;
  size_t place = 0;
  for (const OperandSpec& spec : Describe(instruction.kind).outputs) {
    if (!HasOperand(spec, layout, instruction.attributes)) continue;
    if (place == instruction.outputs.size()) break;
    if (IsAddedTo(spec, instruction.attributes)) {
      operands.push_back(instruction.outputs[place]);
    }
    ++place;
  }
  return operands;
}

Operands ResultsToCheck(const Instruction& instruction) {
  if (IsCollective(instruction.kind) || IsTransfer(instruction.kind)) return {};
  const size_t num_results =
      std::min(instruction.outputs.size(), NumResults(instruction.kind));
  return {
      instruction.outputs.begin(),
      instruction.outputs.begin() + static_cast<std::ptrdiff_t>(num_results)};
}

bool HasFloat8Amax(OpKind kind) {
  return MakesFloat8Copies(kind) || kind == OpKind::kWeightAmax;
}

float LargestAmax(std::span<const float> amaxes) {
  return *std::max_element(amaxes.begin(), amaxes.end(), [](float a, float b) {
    return !std::isnan(a) && !(b <= a);
  });
}

void StepFindings::NoteOrigin(InstructionId id) {
  if (origin_ < 0 || id < origin_) origin_ = id;
}

void StepFindings::NoteAmax(InstructionId id, float amax) {
  if (amax > largest_amax_ || (amax == largest_amax_ && id < largest_)) {
    largest_amax_ = amax;
    largest_ = id;
  }
}

CheckedStep StepFindings::Outcome(const StepResult& result) const {
  CheckedStep checked = {.result = result, .largest_amax = largest_amax_};
  if (origin_ >= 0) {
    const Instruction& origin = program_.instructions[origin_];
    checked.origin =
        absl::StrCat(OpKindName(origin.kind), " ", PlaceOf(origin));
  }
  if (largest_ >= 0) {
    checked.largest_in = PlaceOf(program_.instructions[largest_]);
  }
  return checked;
}

}  // namespace millrace
