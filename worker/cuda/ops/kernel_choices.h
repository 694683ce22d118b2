// The measured choices for kernels and products on the current GPU. Those of
// the hardware profile (planner/profile/profile.h) come first, the shipped ones
// second.

#ifndef MILLRACE_WORKER_CUDA_OPS_KERNEL_CHOICES_H_
#define MILLRACE_WORKER_CUDA_OPS_KERNEL_CHOICES_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm_algorithm_table.h"
#include "kernels/tuning/tuning.h"
#include "planner/profile/profile.h"

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

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_OPS_KERNEL_CHOICES_H_
