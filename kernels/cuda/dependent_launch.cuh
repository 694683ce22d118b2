// Kernels that start while the one before them ends (programmatic dependent
// launch, from compute capability 9.0 on; before that, plain launches).

#ifndef MILLRACE_KERNELS_CUDA_DEPENDENT_LAUNCH_CUH_
#define MILLRACE_KERNELS_CUDA_DEPENDENT_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <type_traits>

#include "absl/status/status.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/status.h"

namespace millrace::gpu {

// First in a kernel launched by LaunchDependent(): nothing before it may touch
// what earlier kernels wrote. Returns when they are done and their writes seen.
__device__ __forceinline__ void WaitForPreviousKernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Once every block has called it or ended, a dependent kernel may take the free
// places of the device. It says nothing about memory.
__device__ __forceinline__ void LetNextKernelStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Launches `kernel`, which begins with WaitForPreviousKernel(), without shared
// memory of its own choosing.
template <typename Args>
absl::Status LaunchDependent(const DeviceLimits& limits, void (*kernel)(Args),
                             dim3 grid, dim3 block, cudaStream_t stream,
                             const std::type_identity_t<Args>& args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = limits.compute_capability >= 90 ? 1 : 0;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, args),
                    "launch a dependent kernel");
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_CUDA_DEPENDENT_LAUNCH_CUH_
