// A Stepper on a GPU, of a Program of either precision: the same bound ops as a
// training's, one at a time.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_STEPPER_H_
#define MILLRACE_WORKER_CUDA_TRAIN_STEPPER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/train/stepper.h"

namespace millrace {

// Creates a stepper on the current device for a training Program of one rank.
// Step memory starts as bytes of 0xff, which are not numbers in any float type,
// so no op may read memory before it wrote it. The caller writes parameters and
// moments.
absl::StatusOr<std::unique_ptr<Stepper>> CreateCudaStepper(
    const StepperOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_STEPPER_H_
