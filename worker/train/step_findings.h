// The op of a rank that made the first value that is not a number, and the
// largest tensor that was copied in 8 bits. A backend runs a step, looks at
// operands on the way, and notes what it sees here.

#ifndef MILLRACE_WORKER_TRAIN_STEP_FINDINGS_H_
#define MILLRACE_WORKER_TRAIN_STEP_FINDINGS_H_

#include <span>
#include <string>

#include "planner/program/program.h"
#include "worker/train/trainer.h"

namespace millrace {

// An op whose operands are numbers and whose results are not is where it began.
// The operands are those before the op runs. Results that the op adds to are
// among them.
Operands OperandsToCheck(const Layout& layout, const Instruction& instruction);
// The results by which an op is judged. None of collectives and transfers,
// which only pass on what other ranks made.
Operands ResultsToCheck(const Instruction& instruction);
// Whether the instruction finds or is given magnitudes of what is copied in 8
// bits.
bool HasFloat8Amax(OpKind kind);
// The largest, NaN above all.
float LargestAmax(std::span<const float> amaxes);

// Not thread-safe.
class StepFindings {
 public:
  // Borrowed.
  explicit StepFindings(const Program* program) : program_(*program) {}

  // The op began with numbers, and some of its results are none.
  void NoteOrigin(InstructionId id);
  // The largest magnitude that the instruction copies in 8 bits.
  void NoteAmax(InstructionId id, float amax);

  // The outcome of a step that was run again with this result, its `origin`
  // empty if no op of this rank began it, as where its weights were no numbers
  // before.
  CheckedStep Outcome(const StepResult& result) const;

 private:
  const Program& program_;
  InstructionId origin_ = -1;  // The earliest in the sequential order.
  float largest_amax_ = 0;
  InstructionId largest_ = -1;  // The earliest of equal ones.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_STEP_FINDINGS_H_
