// Device tensors on which kernels are tuned.

#ifndef MILLRACE_KERNELS_AUTOTUNE_TUNING_CASE_TENSORS_H_
#define MILLRACE_KERNELS_AUTOTUNE_TUNING_CASE_TENSORS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/status.h"

namespace millrace {

// How many sets of tensors to cycle through so that none is still in the cache
// when its turn comes again. Two if a set is meant to stay in the cache.
int NumTuningSets(int64_t bytes_per_set);

// Allocates the tensors of a case and owns them.
class TuningTensors {
 public:
  // Zeros.
  absl::StatusOr<void*> Bytes(int64_t size);

  // Standard normal values as bf16; a pattern of 393241 of them repeats.
  absl::StatusOr<void*> Normals(int64_t size);

  template <typename T>
  absl::StatusOr<T*> Copy(const std::vector<T>& host) {
    ASSIGN_OR_RETURN(void* data, Bytes(host.size() * sizeof(T)));
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(data, host.data(), host.size() * sizeof(T),
                              cudaMemcpyHostToDevice),
                   "fill a tensor to be tuned on"));
    return static_cast<T*>(data);
  }

  std::vector<DeviceBuffer<uint8_t>> Take() { return std::move(memory_); }

 private:
  std::vector<DeviceBuffer<uint8_t>> memory_;
};

}  // namespace millrace

#endif  // MILLRACE_KERNELS_AUTOTUNE_TUNING_CASE_TENSORS_H_
