#include "absl/status/status.h"

#include <cuda_runtime_api.h>

#include "gtest/gtest.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

// Goal: each CUDA error reaches the layer that can act on it. Method: one error
// of each kind; the message names what failed.
TEST(CudaStatusTest, NamesWhoCanAct) {
  EXPECT_TRUE(CudaStatus(cudaSuccess, "launch").ok());
  const absl::Status memory =
      CudaStatus(cudaErrorMemoryAllocation, "allocate device memory");
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(memory.message().find("allocate device memory"),
            absl::string_view::npos);
  // The errors that a launch and AllowSharedBytes() get on a device that is too
  // old.
  for (const cudaError_t error :
       {cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction}) {
    const absl::Status status = CudaStatus(error, "launch RmsNormBf16");
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(status.message().find("not compiled"), absl::string_view::npos);
  }
  EXPECT_EQ(CudaStatus(cudaErrorIllegalAddress, "launch").code(),
            absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace millrace
