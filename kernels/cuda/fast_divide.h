// Division by a number that is known when a kernel is launched, as a
// multiplication and a shift (Granlund and Montgomery, "Division by Invariant
// Integers using Multiplication", 1994).

#ifndef MILLRACE_KERNELS_CUDA_FAST_DIVIDE_H_
#define MILLRACE_KERNELS_CUDA_FAST_DIVIDE_H_

#include <cstdint>

#if defined(__CUDACC__)
#define MILLRACE_HOST_DEVICE __host__ __device__
#else
#define MILLRACE_HOST_DEVICE
#endif

namespace millrace {

// For dividends below 2^31.
struct FastDivisor {
  uint32_t divisor;
  uint32_t multiplier;
  uint32_t shift;

  MILLRACE_HOST_DEVICE uint32_t Quotient(uint32_t dividend) const {
    const uint64_t product = uint64_t{dividend} * multiplier;
    return (static_cast<uint32_t>(product >> 32) + dividend) >> shift;
  }
  MILLRACE_HOST_DEVICE uint32_t Remainder(uint32_t dividend) const {
    return dividend - Quotient(dividend) * divisor;
  }
};

// `divisor` is in [1, 2^31).
inline FastDivisor MakeFastDivisor(uint32_t divisor) {
  uint32_t shift = 0;
  while ((uint64_t{1} << shift) < divisor) ++shift;
  const uint64_t multiplier =
      (uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor) / divisor + 1;
  return {.divisor = divisor,
          .multiplier = static_cast<uint32_t>(multiplier),
          .shift = shift};
}

}  // namespace millrace

#undef MILLRACE_HOST_DEVICE

#endif  // MILLRACE_KERNELS_CUDA_FAST_DIVIDE_H_
