#include "planner/program/operand_check.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/program/op_table.h"

namespace millrace {
namespace {

int64_t ProductOf(std::span<const int64_t> dims) {
  int64_t product = 1;
  for (const int64_t dim : dims) product *= dim;
  return product;
}

class InstructionCheck {
 public:
  InstructionCheck(const Program& program, const Instruction& instruction)
      : program_(program),
        in_(instruction),
        op_(Describe(instruction.kind)),
        inputs_(SpecsOf(op_.inputs)),
        outputs_(SpecsOf(op_.outputs)) {}

  absl::Status Run() const {
    RETURN_IF_ERROR(CheckPhase());
    RETURN_IF_ERROR(CheckCount("inputs", inputs_, in_.inputs.size()));
    RETURN_IF_ERROR(CheckCount("outputs", outputs_, in_.outputs.size()));
    for (size_t i = 0; i < in_.inputs.size(); ++i) {
      RETURN_IF_ERROR(CheckOperand("input", i, *inputs_[i], in_.inputs[i],
                                   LargestInPlace(i)));
    }
    for (size_t i = 0; i < in_.outputs.size(); ++i) {
      RETURN_IF_ERROR(CheckOutput(i));
    }
    return absl::OkStatus();
  }

 private:
  using Specs = std::vector<const OperandSpec*>;

  // In the order of the table, without those that this instruction cannot have.
  template <typename List>
  Specs SpecsOf(const List& list) const {
    Specs specs;
    if (in_.attributes.index() != op_.attributes) return specs;
    for (const OperandSpec& spec : list) {
      if (HasOperand(spec, program_.layout, in_.attributes)) {
        specs.push_back(&spec);
      }
    }
    return specs;
  }

  absl::Status CheckPhase() const {
    if (in_.attributes.index() != op_.attributes) {
      return absl::InternalError(
          absl::StrCat(op_.name, " has the attributes of another op kind: ",
                       AttributesToString(in_.attributes)));
    }
    if (!op_.phases.Has(in_.phase)) {
      return absl::InternalError(absl::StrCat(
          op_.name, " is no op of the phase ", PhaseName(in_.phase)));
    }
    const Recompute recomputed = program_.layout.recompute_of(program_.stage);
    if (in_.phase == Phase::kRecompute &&
        (op_.recompute & recomputed) == Recompute::kNone) {
      return absl::InternalError(
          absl::StrCat(op_.name, " is recomputed, but the stage recomputes ",
                       RecomputeName(recomputed)));
    }
    return absl::OkStatus();
  }

  // Optional operands are the last ones.
  absl::Status CheckCount(const char* what, const Specs& specs,
                          size_t count) const {
    const auto num_optional = static_cast<size_t>(
        std::count_if(specs.begin(), specs.end(), [](const OperandSpec* spec) {
          return spec->presence == Presence::kOptional;
        }));
    if (count <= specs.size() && count + num_optional >= specs.size()) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat(op_.name, " has ", count, " ", what,
                                            " instead of ", specs.size()));
  }

  int64_t NumElementsOf(const OperandSpec& spec) const {
    return ProductOf(OperandDims(spec, program_.layout, in_.attributes));
  }

  // Elements of an input that an output is in place of by choice; else 0.
  int64_t LargestInPlace(size_t input) const {
    int64_t largest = 0;
    for (size_t i = 0; i < in_.outputs.size(); ++i) {
      const OperandSpec& output = *outputs_[i];
      if (output.in_place_is_a_choice &&
          output.input == static_cast<int>(input) &&
          in_.outputs[i] == in_.inputs[input]) {
        largest =
            std::max(NumElementsOf(output), NumElementsOf(*inputs_[input]));
      }
    }
    return largest;
  }

  absl::Status CheckOutput(size_t i) const {
    const OperandSpec& output = *outputs_[i];
    int64_t in_place = 0;
    if (output.input != kNoInput) {
      const auto input = static_cast<size_t>(output.input);
      if (!output.in_place_is_a_choice && in_.outputs[i] != in_.inputs[input]) {
        return absl::InternalError(absl::StrCat(
            op_.name, " writes ", output.name, " to ",
            program_.buffers[in_.outputs[i]].name, " instead of in place, to ",
            program_.buffers[in_.inputs[input]].name));
      }
      in_place = LargestInPlace(input);
    }
    return CheckOperand("output", i, output, in_.outputs[i], in_place);
  }

  // `num_elements` of zero: as the table says.
  absl::Status CheckOperand(const char* what, size_t i, const OperandSpec& spec,
                            BufferId id, int64_t num_elements) const {
    const Buffer& buffer = program_.buffers[id];
    const DType dtype = OperandType(spec, program_.layout, in_.attributes);
    const bool has_type = spec.role == ElementRole::kAny ||
                          buffer.dtype == dtype ||
                          (spec.or_float32 && buffer.dtype == DType::kFloat32);
    if (num_elements == 0) num_elements = NumElementsOf(spec);
    const int64_t actual = ProductOf(buffer.dims);
    if (has_type && actual == num_elements) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(
        what, " ", i, " of ", op_.name, ", ", spec.name, ", is ", buffer.name,
        " with ", actual, " ", DTypeName(buffer.dtype), " instead of ",
        num_elements, " ", DTypeName(dtype)));
  }

  const Program& program_;
  const Instruction& in_;
  const OpDescriptor& op_;
  const Specs inputs_;
  const Specs outputs_;
};

}  // namespace

absl::Status CheckInstruction(const Program& program,
                              const Instruction& instruction) {
  return InstructionCheck(program, instruction).Run();
}

}  // namespace millrace
