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

// Returns the choices for a device of this name ("NVIDIA H200"): those of
// `tuning` if it was measured on such a device, then those that are shipped for
// it. A tuning of another device changes nothing. InvalidArgument names the
// profile's entry that no kernel of this version understands.
absl::StatusOr<CudaChoices> ChoicesFor(const KernelTuning& tuning,
                                       const std::string& device);

// The name of the current device.
absl::StatusOr<std::string> CurrentDeviceName();

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_OPS_KERNEL_CHOICES_H_
