#include "kernels/cuda/store_word.h"

#include "kernels/cuda/status.h"

namespace millrace {
namespace {

// One thread; limited by the launch.
__global__ void StoreWordKernel(int32_t* out, int32_t value) { *out = value; }

}  // namespace

absl::Status LaunchStoreWord(int32_t* out, int32_t value, cudaStream_t stream) {
  StoreWordKernel<<<1, 1, 0, stream>>>(out, value);
  return CudaStatus(cudaGetLastError(), "launch StoreWord");
}

}  // namespace millrace
