#include "planner/program/op_work.h"

#include "planner/program/op_table.h"

namespace millrace {
namespace {

// Elements of the operand that are read or written.
double MovedElements(const OperandSpec& spec, const Layout& layout,
                     const OpAttributes& attributes,
                     const LetterValues& letters) {
  switch (spec.traffic) {
    case Traffic::kNothing:
      return 0;
    case Traffic::kAsGivenInFloat32:
      if (layout.precision != Precision::kFloat32) return 0;
      return spec.moved.In(letters);
    case Traffic::kAsGiven:
      return spec.moved.In(letters);
    case Traffic::kWhole:
      break;
  }
  double elements = 1;
  for (size_t i = 0; i < spec.num_dims; ++i) {
    elements *= spec.dims[i].In(letters);
  }
  return IsAddedTo(spec, attributes) ? 2 * elements : elements;
}

double MovedBytes(const OperandSpec& spec, const Layout& layout,
                  const OpAttributes& attributes, const LetterValues& letters) {
  if (spec.traffic == Traffic::kNothing ||
      !HasOperand(spec, layout, attributes)) {
    return 0;
  }
  const DType dtype = OperandType(spec, layout, attributes);
  return MovedElements(spec, layout, attributes, letters) *
         static_cast<double>(DTypeBytes(dtype)) /
         static_cast<double>(DTypeNumbers(dtype));
}

}  // namespace

OpWork WorkOf(const Layout& layout, OpKind kind,
              const OpAttributes& attributes) {
  const OpDescriptor& op = Describe(kind);
  const LetterValues letters = LettersOf(layout, attributes);
  OpWork work = {.flops = op.flops.In(letters), .bytes = op.bytes.In(letters)};
  for (const OperandSpec& input : op.inputs) {
    work.bytes += MovedBytes(input, layout, attributes, letters);
  }
  for (const OperandSpec& output : op.outputs) {
    work.bytes += MovedBytes(output, layout, attributes, letters);
  }
  return work;
}

}  // namespace millrace
