// Whether an instruction is what the op table says of its kind: its attributes,
// its phase and its operands.

#ifndef MILLRACE_PLANNER_PROGRAM_OPERAND_CHECK_H_
#define MILLRACE_PLANNER_PROGRAM_OPERAND_CHECK_H_

#include "absl/status/status.h"
#include "planner/program/program.h"

namespace millrace {

// Operands must be as many as the kind has, of its element types and of as many
// elements as its attributes and the Program's layout ask for. Operands that
// are the same tensor in the table must be the same buffer. Returns Internal
// with the mistake, without the instruction's name. Buffer ids must be valid.
absl::Status CheckInstruction(const Program& program,
                              const Instruction& instruction);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_OPERAND_CHECK_H_
