// The tuning of a hardware profile (planner/profile.h) on a GPU: what launchers
// and products choose by because of it, and how it is measured.

#ifndef MILLRACE_WORKER_CUDA_CUDA_TUNING_H_
#define MILLRACE_WORKER_CUDA_CUDA_TUNING_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/gemm_algorithm_table.h"
#include "kernels/tuning.h"
#include "kernels/tuning_cases.h"
#include "planner/profile.h"
#include "planner/profile_request.h"
#include "worker/cuda/cuda_op_timer.h"

namespace millrace {

struct CudaChoices {
  TuningTable kernels;          // For InstallTuning().
  GemmAlgorithmTable products;  // For CudaKernelCache::Options.
};

// For a device of this name ("NVIDIA H200"): what is shipped for it, under what
// `tuning` says if it was measured on one; a tuning of another device, or none,
// changes nothing. InvalidArgument names the entry of the profile that no
// kernel of this version understands.
absl::StatusOr<CudaChoices> ChoicesFor(const KernelTuning& tuning,
                                       const std::string& device);

// The name of the current device.
absl::StatusOr<std::string> CurrentDeviceName();

// Measures the kernels' open choices on `cases` (TrainingTuningCases(): some
// half a minute), then the products of `request`, the largest first, until
// `product_time` is up. Both are in force when it returns: installed, and with
// `timer`. For a GPU that does nothing else; where it came from is left to the
// caller.
absl::StatusOr<KernelTuning> MeasureTuning(
    const std::vector<TuningCaseMaker>& cases, const ProfileRequest& request,
    absl::Duration product_time, CudaOpTimer& timer);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_CUDA_TUNING_H_
