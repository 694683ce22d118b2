// Finds the op of a rank that made the first value that is not a number, and
// the largest tensor that was copied in 8 bits.

#ifndef MILLRACE_WORKER_CPU_STEP_CHECK_H_
#define MILLRACE_WORKER_CPU_STEP_CHECK_H_

#include <mutex>
#include <string>
#include <vector>

#include "planner/program/program.h"
#include "worker/cpu/executor.h"
#include "worker/train/arena.h"

namespace millrace {

// Reads every operand of a run. An op whose operands are numbers and whose
// results are not is where it began. Collectives and transfers only pass on
// what other ranks made, so they are never named.
class StepCheck final : public RunObserver {
 public:
  // Both are borrowed.
  StepCheck(const Program* program, const Arenas* arenas);

  void Before(InstructionId id) override;
  void After(InstructionId id) override;

  // "gemm 'layers.3/mlp/down' of micro-batch 1 (forward)". Empty if no op of
  // this rank began it, for one since its weights were no numbers before. Call
  // after the run.
  std::string Origin() const;
  // As CheckedStep has them (worker/train/trainer.h). Call after the run.
  float largest_amax() const { return largest_amax_; }
  std::string LargestIn() const;

 private:
  bool AreNumbers(BufferId id) const;
  // The largest magnitude of what the instruction copies in 8 bits, once it has
  // run.
  float AmaxOf(const Instruction& instruction) const;
  void NoteAmax(InstructionId id);

  const Program& program_;
  const Arenas& arenas_;
  std::vector<char> begins_with_numbers_;  // By instruction.
  std::mutex mutex_;                       // Guards what follows.
  InstructionId origin_ = -1;  // The earliest in the sequential order.
  float largest_amax_ = 0;
  InstructionId largest_ = -1;  // The earliest of equal ones.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CPU_STEP_CHECK_H_
