// Random bits as a pure function of (seed, stream, index), and rounding to bf16
// with them.

#ifndef MILLRACE_KERNELS_CUDA_RANDOM_CUH_
#define MILLRACE_KERNELS_CUDA_RANDOM_CUH_

#include <cstdint>

namespace millrace::gpu {

// Philox4x32 of kernels/pointwise/random_normal.h, bit for bit.
__device__ __forceinline__ uint4 Philox4x32(uint4 counter, uint2 key) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53;
  constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;
  constexpr uint32_t kWeyl1 = 0xBB67AE85;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * counter.x;
    const uint64_t product1 = uint64_t{kMultiplier1} * counter.z;
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter.y ^ key.x,
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter.w ^ key.y,
               static_cast<uint32_t>(product0)};
    key = {key.x + kWeyl0, key.y + kWeyl1};
  }
  return counter;
}

// 128 bits for block `index` of `stream`.
__device__ __forceinline__ uint4 RandomBits(uint64_t seed, uint64_t stream,
                                            uint64_t index) {
  return Philox4x32(
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
       static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// The bits of x in the upper half, ready to be cut off there: rounded up with
// the probability that makes the mean exact, by 16 random bits added below the
// mantissa. Infinity stays what it is and NaN stays NaN.
__device__ __forceinline__ uint32_t StochasticUpperHalf(float x,
                                                        uint32_t random16) {
  constexpr uint32_t kNan = 0x7FFF0000u;
  return x == x ? __float_as_uint(x) + random16 : kNan;
}

// Two values in bf16, the first in the lower half; of the random words, only
// the lower 16 bits are used.
__device__ __forceinline__ uint32_t StochasticPair(float low, float high,
                                                   uint32_t random_low,
                                                   uint32_t random_high) {
  return __byte_perm(StochasticUpperHalf(low, random_low & 0xFFFFu),
                     StochasticUpperHalf(high, random_high & 0xFFFFu), 0x7632);
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_CUDA_RANDOM_CUH_
