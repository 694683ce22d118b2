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

// Makes *amax the larger of what it was and the largest magnitude in the block's
// pairs. All threads of the block take part; each has its own `largest`. Blocks
// read amax before they change it, so that few of many thousands meet there.
template <int kNumThreads>
__device__ __forceinline__ void RaiseAmax(float* amax, uint32_t largest) {
  static_assert(kNumThreads % kWarpSize == 0);
  __shared__ uint32_t maxima[kNumThreads / kWarpSize];
  largest = __reduce_max_sync(
      ~0u, max(largest & 0xFFFF0000u, largest << 16));
  if (threadIdx.x % kWarpSize == 0) maxima[threadIdx.x / kWarpSize] = largest;
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return;
  largest = 0;
  for (int warp = threadIdx.x; warp < kNumThreads / kWarpSize;
       warp += kWarpSize) {
    largest = maxima[warp];
  }
  largest = __reduce_max_sync(~0u, largest);
  auto* bits = reinterpret_cast<uint32_t*>(amax);
  if (threadIdx.x == 0 && largest > *bits) atomicMax(bits, largest);
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_CUDA_AMAX_CUH_
