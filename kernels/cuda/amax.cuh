// The largest magnitude of bf16 tensors, found by the threads that write or read
// them. As whole numbers, the bits of magnitudes rise with them, NaN above all,
// so that maxima of bits are maxima of magnitudes in any order.

#ifndef MILLRACE_KERNELS_CUDA_AMAX_CUH_
#define MILLRACE_KERNELS_CUDA_AMAX_CUH_

#include <cstdint>

#include "kernels/cuda/vector.cuh"

namespace millrace::gpu {

// The larger magnitudes of two pairs of bf16 values, half by half.
__device__ __forceinline__ uint32_t LargerPair(uint32_t largest,
                                               uint32_t pair) {
  return __vmaxu2(largest, pair & 0x7FFF7FFFu);
}
__device__ __forceinline__ uint32_t LargerPair(uint32_t largest, uint4 eight) {
  return LargerPair(LargerPair(LargerPair(LargerPair(largest, eight.x), eight.y),
                               eight.z),
                    eight.w);
}

// Makes *amax the larger of what it was and `bits`. One thread calls it.
__device__ __forceinline__ void RaiseAmaxBits(float* amax, uint32_t bits) {
  auto* current = reinterpret_cast<uint32_t*>(amax);
  // A read spares the atomic of almost all of many thousands of blocks; where
  // it is stale, the atomic only changes nothing.
  if (bits > *current) atomicMax(current, bits);
}

// The same of the largest magnitude in a warp's pairs; all lanes take part.
__device__ __forceinline__ uint32_t LargestOfWarp(uint32_t largest) {
  return __reduce_max_sync(~0u, max(largest & 0xFFFF0000u, largest << 16));
}
__device__ __forceinline__ void RaiseAmaxOfWarp(float* amax, uint32_t largest) {
  largest = LargestOfWarp(largest);
  if (threadIdx.x % kWarpSize == 0) RaiseAmaxBits(amax, largest);
}

// Makes *amax the larger of what it was and the largest magnitude in the block's
// pairs. All threads of the block take part; each has its own `largest`.
template <int kNumThreads>
__device__ __forceinline__ void RaiseAmax(float* amax, uint32_t largest) {
  static_assert(kNumThreads % kWarpSize == 0);
  __shared__ uint32_t maxima[kNumThreads / kWarpSize];
  largest = LargestOfWarp(largest);
  if (threadIdx.x % kWarpSize == 0) maxima[threadIdx.x / kWarpSize] = largest;
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return;
  largest = 0;
  for (int warp = threadIdx.x; warp < kNumThreads / kWarpSize;
       warp += kWarpSize) {
    largest = maxima[warp];
  }
  largest = __reduce_max_sync(~0u, largest);
  if (threadIdx.x == 0) RaiseAmaxBits(amax, largest);
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_CUDA_AMAX_CUH_
