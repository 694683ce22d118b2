// Four consecutive elements of a flat fp32 or bf16 buffer: what one lane takes
// at a time where buffers of both types are read side by side, so that a warp
// always covers whole 128-byte lines of each.

#ifndef MILLRACE_KERNELS_CUDA_FOUR_CUH_
#define MILLRACE_KERNELS_CUDA_FOUR_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/vector.cuh"

namespace millrace::gpu {

struct Four {
  float v[4];
};

// Element `index`, a multiple of four, and the next three; the buffer begins at
// a multiple of 16 bytes. Streaming, as in vector.cuh.
template <bool kIsBf16>
__device__ __forceinline__ Four LoadFour(const void* buffer, int64_t index) {
  if constexpr (kIsBf16) {
    const uint2 raw = __ldcs(reinterpret_cast<const uint2*>(
        static_cast<const uint16_t*>(buffer) + index));
    return {LowHalf(raw.x), HighHalf(raw.x), LowHalf(raw.y), HighHalf(raw.y)};
  } else {
    const float4 raw = __ldcs(reinterpret_cast<const float4*>(
        static_cast<const float*>(buffer) + index));
    return {raw.x, raw.y, raw.z, raw.w};
  }
}

// The elements of the four that lie in [begin, end); zero for the others.
template <bool kIsBf16>
__device__ __forceinline__ Four LoadPartOfFour(const void* buffer,
                                               int64_t index, int64_t begin,
                                               int64_t end) {
  Four x = {};
  for (int j = 0; j < 4; ++j) {
    if (index + j < begin || index + j >= end) continue;
    if constexpr (kIsBf16) {
      x.v[j] = LowHalf(static_cast<const uint16_t*>(buffer)[index + j]);
    } else {
      x.v[j] = static_cast<const float*>(buffer)[index + j];
    }
  }
  return x;
}

__device__ __forceinline__ void StoreFour(float* buffer, int64_t index,
                                          const Four& x) {
  __stcs(reinterpret_cast<float4*>(buffer + index),
         float4{x.v[0], x.v[1], x.v[2], x.v[3]});
}
__device__ __forceinline__ void StorePartOfFour(float* buffer, int64_t index,
                                                const Four& x, int64_t begin,
                                                int64_t end) {
  for (int j = 0; j < 4; ++j) {
    if (index + j >= begin && index + j < end) buffer[index + j] = x.v[j];
  }
}

// Four bf16 values, two in each word, the first in the lower half of x.
__device__ __forceinline__ void StoreFour(uint16_t* buffer, int64_t index,
                                          uint2 raw) {
  __stcs(reinterpret_cast<uint2*>(buffer + index), raw);
}
__device__ __forceinline__ void StorePartOfFour(uint16_t* buffer, int64_t index,
                                                uint2 raw, int64_t begin,
                                                int64_t end) {
  for (int j = 0; j < 4; ++j) {
    const uint32_t word = j < 2 ? raw.x : raw.y;
    if (index + j >= begin && index + j < end) {
      buffer[index + j] = static_cast<uint16_t>(word >> (16 * (j % 2)));
    }
  }
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_CUDA_FOUR_CUH_
