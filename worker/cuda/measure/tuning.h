// Measures on a GPU which of their open choices kernels and products should
// take: the tuning of a hardware profile (planner/profile/profile.h).

#ifndef MILLRACE_WORKER_CUDA_MEASURE_TUNING_H_
#define MILLRACE_WORKER_CUDA_MEASURE_TUNING_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/autotune/tuning_cases.h"
#include "planner/learn/profile_request.h"
#include "planner/profile/profile.h"
#include "worker/cuda/measure/op_timer.h"

namespace millrace {

// Measures the kernels' open choices on `cases` (TrainingTuningCases(): some
// half a minute), then the products of `request`, the largest first, until
// `product_time` is up. Both are in force when it returns: installed, and with
// `timer`. For a GPU that does nothing else; where it came from is left to the
// caller.
absl::StatusOr<KernelTuning> MeasureTuning(
    const std::vector<TuningCaseMaker>& cases, const ProfileRequest& request,
    absl::Duration product_time, CudaOpTimer& timer);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_MEASURE_TUNING_H_
