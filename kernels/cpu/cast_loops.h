// Loops over runs of 8-bit floats. Integer arithmetic, so every level yields
// the same bits; the compiler makes vector code of it.

#ifndef MILLRACE_KERNELS_CPU_CAST_LOOPS_H_
#define MILLRACE_KERNELS_CPU_CAST_LOOPS_H_

#include <cstdint>

#include "kernels/pointwise/cast.h"

namespace millrace {
namespace {

constexpr uint32_t kMagnitudeBits = 0x7FFFFFFF;
constexpr uint32_t kInfinityBits = 0x7F800000;

// EncodeFloat8() without branches. kLargest is the largest finite value.
template <uint32_t kMantissaBits, uint32_t kBias, uint32_t kLargest>
inline uint8_t EncodeWithoutBranches(float x) {
  constexpr uint32_t kDropped = 23 - kMantissaBits;
  constexpr uint32_t kExponentShift = 127 - kBias;
  // From kLargest's bits in the format to those in fp32.
  constexpr uint32_t kLargestFloat =
      (kLargest + (kExponentShift << kMantissaBits)) << kDropped;
  constexpr uint32_t kLeastNormal = (kExponentShift + 1) << 23;
  // The last mantissa bit of this power of two is the format's smallest step.
  constexpr uint32_t kStepper = (kExponentShift + 24 - kMantissaBits) << 23;

  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t magnitude = bits & kMagnitudeBits;
  const uint32_t rounded =
      magnitude + ((1u << (kDropped - 1)) - 1) + (magnitude >> kDropped & 1);
  const uint32_t normal =
      (rounded >> kDropped) - (kExponentShift << kMantissaBits);
  const float stepped = __builtin_bit_cast(float, magnitude) +
                        __builtin_bit_cast(float, kStepper);
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, stepped) - kStepper;
  uint32_t code = magnitude < kLeastNormal ? subnormal : normal;
  code = magnitude >= kLargestFloat ? kLargest : code;
  code = magnitude > kInfinityBits ? 0x7F : code;
  return static_cast<uint8_t>(code | (bits >> 24 & 0x80));
}

void EncodeFloat8Loop(uint8_t* y, const float* x, int64_t num_elements,
                      float scale, Float8Format format) {
  if (format == Float8Format::kE4m3) {
    for (int64_t i = 0; i < num_elements; ++i) {
      y[i] = EncodeWithoutBranches<3, 7, 0x7E>(x[i] * scale);
    }
  } else {
    for (int64_t i = 0; i < num_elements; ++i) {
      y[i] = EncodeWithoutBranches<2, 15, 0x7B>(x[i] * scale);
    }
  }
}

// As whole numbers, the bits of magnitudes rise with them, NaN above all.
uint32_t LargestMagnitudeLoop(const float* x, int64_t num_elements) {
  int32_t largest = 0;
  for (int64_t i = 0; i < num_elements; ++i) {
    const auto magnitude = static_cast<int32_t>(
        __builtin_bit_cast(uint32_t, x[i]) & kMagnitudeBits);
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<uint32_t>(largest);
}

}  // namespace
}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_CAST_LOOPS_H_
