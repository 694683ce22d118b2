// Changing the type of numbers: fp32 to bf16 and back, and to 8-bit floats with
// a scale (Micikevicius et al., "FP8 Formats for Deep Learning", 2022).

#ifndef MILLRACE_KERNELS_POINTWISE_CAST_H_
#define MILLRACE_KERNELS_POINTWISE_CAST_H_

#include <bit>
#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

// Sign, exponent and mantissa bits: 1-4-3 without infinities, up to 448; and
// 1-5-2, up to 57344.
enum class Float8Format { kE4m3, kE5m2 };

// To nearest even; what is too large, infinity too, becomes the largest value,
// and NaN stays NaN.
uint8_t EncodeFloat8(float x, Float8Format format);
float DecodeFloat8(uint8_t bits, Float8Format format);

// The bits of x in bf16, to nearest even; infinity stays infinity and NaN NaN.
// Without branches, so that loops over it become vector code.
inline uint16_t EncodeBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
  const uint32_t quiet = bits | 0x00400000;
  return static_cast<uint16_t>((x != x ? quiet : rounded) >> 16);
}
inline float DecodeBf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// The same of flat runs on a CPU.
struct EncodeBf16Args {
  uint16_t* y;  // [num_elements]; apart from x.
  const float* x;
  int64_t num_elements;  // Zero is allowed and does nothing.
};
struct DecodeBf16Args {
  float* y;  // [num_elements]; apart from x.
  const uint16_t* x;
  int64_t num_elements;
};
// Both return InvalidArgument if num_elements is negative or num_threads below
// one. Results do not depend on num_threads.
absl::Status EncodeBf16(const EncodeBf16Args& args, int num_threads);
absl::Status DecodeBf16(const DecodeBf16Args& args, int num_threads);

// The bits of x in bf16, rounded up with the probability that makes the mean
// exact. The random bits are half index % 8 of the four words of Philox4x32
// (random_normal.h) with counter (index / 8, stream) and key seed, low halves
// first. Infinity stays what it is and NaN stays NaN.
uint16_t EncodeBf16Stochastic(float x, uint64_t seed, uint64_t stream,
                              uint64_t index);

// y = x * scale in the format, and the largest |x|.
struct QuantizeFloat8Args {
  uint8_t* y;             // [rows, columns]
  uint8_t* y_transposed;  // [columns, rows]
  float* amax;            // The larger of what was there and the largest |x|.
  const float* x;         // [rows, columns]
  int64_t rows;
  int64_t columns;
  float scale;
  Float8Format format;
};

// The meaning of the kernel in plain loops.
void QuantizeFloat8Reference(const QuantizeFloat8Args& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_CAST_H_
