// A Stepper on CPU cores, of an fp32 Program: what GPUs are compared with.

#ifndef MILLRACE_WORKER_CPU_STEPPER_H_
#define MILLRACE_WORKER_CPU_STEPPER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "fault/training_state.h"
#include "worker/train/stepper.h"

namespace millrace {

class CpuStepper : public Stepper {
 public:
  // Initializes the parameters from the job's seed. InvalidArgument if the
  // Program is of several ranks.
  static absl::StatusOr<std::unique_ptr<CpuStepper>> Create(
      const StepperOptions& options);

  // Parameters and moments as checkpoints see them, to load one into; of a
  // training Program.
  virtual std::vector<StatePiece> StatePieces() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CPU_STEPPER_H_
