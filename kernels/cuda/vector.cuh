// 16-byte accesses and reductions for kernels that memory bandwidth limits.

#ifndef MILLRACE_KERNELS_CUDA_VECTOR_CUH_
#define MILLRACE_KERNELS_CUDA_VECTOR_CUH_

#include <cuda_bf16.h>

#include <cstdint>

namespace millrace::gpu {

inline constexpr int kWarpSize = 32;

// Eight consecutive bf16 values as floats.
struct Float8 {
  float v[8];
};

// Two bf16 values in 32 bits, the first in the lower half.
__device__ __forceinline__ float LowHalf(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float HighHalf(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}
__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ Float8 Unpack8(uint4 raw) {
  return {{LowHalf(raw.x), HighHalf(raw.x), LowHalf(raw.y), HighHalf(raw.y),
           LowHalf(raw.z), HighHalf(raw.z), LowHalf(raw.w), HighHalf(raw.w)}};
}
__device__ __forceinline__ uint4 Pack8(const Float8& x) {
  return {PackPair(x.v[0], x.v[1]), PackPair(x.v[2], x.v[3]),
          PackPair(x.v[4], x.v[5]), PackPair(x.v[6], x.v[7])};
}

// Addresses are multiples of 16 bytes. The streaming variants mark data that
// will not be read again soon, so that it leaves the caches first.
__device__ __forceinline__ uint4 Load16(const void* address) {
  return *static_cast<const uint4*>(address);
}
__device__ __forceinline__ uint4 Load16Streaming(const void* address) {
  return __ldcs(static_cast<const uint4*>(address));
}
__device__ __forceinline__ void Store16(void* address, uint4 raw) {
  *static_cast<uint4*>(address) = raw;
}
__device__ __forceinline__ void Store16Streaming(void* address, uint4 raw) {
  __stcs(static_cast<uint4*>(address), raw);
}

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(~0u, x, offset);
  }
  return x;
}
__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
  }
  return x;
}

// The sum over a block of kNumThreads threads, in every thread, always in the
// same order. `scratch` holds kNumThreads / 32 floats of shared memory and may
// be used again after the next block barrier.
template <int kNumThreads>
__device__ __forceinline__ float BlockSum(float x, float* scratch) {
  static_assert(kNumThreads % kWarpSize == 0 && kNumThreads <= 1024);
  x = WarpSum(x);
  if constexpr (kNumThreads > kWarpSize) {
    if (threadIdx.x % kWarpSize == 0) scratch[threadIdx.x / kWarpSize] = x;
    __syncthreads();
    x = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kNumThreads / kWarpSize; ++warp) {
      x += scratch[warp];
    }
  }
  return x;
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_CUDA_VECTOR_CUH_
