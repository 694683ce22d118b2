#include "kernels/cuda/store_word.h"

#include "kernels/cuda/status.h"

namespace millrace {
namespace {

// One thread; limited by the launch.
__global__ void StoreWordKernel(int32_t* out, int32_t value) { *out = value; }

// One block; limited by the launch and the way to the host.
__global__ void StoreOnHostKernel(double* out, const double* values,
                                  int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) out[i] = values[i];
}

}  // namespace

absl::Status LaunchStoreWord(int32_t* out, int32_t value, cudaStream_t stream) {
  StoreWordKernel<<<1, 1, 0, stream>>>(out, value);
  return CudaStatus(cudaGetLastError(), "launch StoreWord");
}

absl::Status LaunchStoreOnHost(double* out, const double* values, int64_t count,
                               cudaStream_t stream) {
  StoreOnHostKernel<<<1, 32, 0, stream>>>(out, values, count);
  return CudaStatus(cudaGetLastError(), "launch StoreOnHost");
}

}  // namespace millrace
