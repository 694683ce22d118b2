// Measures how much of the current device's memory is taken.

#ifndef MILLRACE_WORKER_CUDA_DEVICE_DEVICE_MEMORY_H_
#define MILLRACE_WORKER_CUDA_DEVICE_DEVICE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace millrace {

// Counts the memory of all processes, since a job has its devices for itself.
inline absl::StatusOr<int64_t> UsedDeviceBytes() {
  size_t free_bytes = 0, total_bytes = 0;
  RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes),
                             "ask for the device's free memory"));
  return static_cast<int64_t>(total_bytes - free_bytes);
}

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_DEVICE_DEVICE_MEMORY_H_
