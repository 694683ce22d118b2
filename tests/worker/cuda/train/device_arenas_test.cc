#include "worker/cuda/device/device_arenas.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// Returns how long the allocation at `base` is, or -1.
int64_t AllocatedBytes(const void* base) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  if (cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &found, 12000,
                                       cudaEnableDefault,
                                       &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    return -1;
  }
  CUdeviceptr start = 0;
  size_t bytes = 0;
  if (reinterpret_cast<decltype(&cuMemGetAddressRange)>(found)(
          &start, &bytes, reinterpret_cast<CUdeviceptr>(base)) !=
      CUDA_SUCCESS) {
    return -1;
  }
  return static_cast<int64_t>(bytes);
}

TEST(DeviceArenasTest, AllocatesWholePages) {
  const auto arenas = DeviceArenas::Allocate(256, kDevicePageBytes + 256);
  ASSERT_TRUE(arenas.ok()) << arenas.status();
  EXPECT_EQ(AllocatedBytes(arenas->Base(Arena::kPersistent)), kDevicePageBytes);
  EXPECT_EQ(AllocatedBytes(arenas->Base(Arena::kStep)), 2 * kDevicePageBytes);
  EXPECT_EQ(arenas->bytes(), 256 + kDevicePageBytes + 256);
}

}  // namespace
}  // namespace millrace
