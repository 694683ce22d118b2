// Looks at the operands of a step that runs on CPU cores, to find the op that
// made the first value that is not a number (worker/train/step_findings.h).

#ifndef MILLRACE_WORKER_CPU_STEP_CHECK_H_
#define MILLRACE_WORKER_CPU_STEP_CHECK_H_

#include <mutex>
#include <vector>

#include "planner/program/program.h"
#include "worker/cpu/executor.h"
#include "worker/train/arena.h"
#include "worker/train/step_findings.h"

namespace millrace {

class StepCheck final : public RunObserver {
 public:
  // Both are borrowed.
  StepCheck(const Program* program, const Arenas* arenas);

  void Before(InstructionId id) override;
  void After(InstructionId id) override;

  // Call after the run.
  const StepFindings& findings() const { return findings_; }

 private:
  bool AreNumbers(const Operands& buffers) const;
  // The largest magnitude of what the instruction copies in 8 bits, once it has
  // run.
  float AmaxOf(const Instruction& instruction) const;

  const Program& program_;
  const Arenas& arenas_;
  std::vector<char> begins_with_numbers_;  // By instruction.
  std::mutex mutex_;
  StepFindings findings_;  // Guarded by mutex_ during the run.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CPU_STEP_CHECK_H_
