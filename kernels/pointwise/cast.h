// Changing the type of numbers: fp32 to bf16 and back, and to 8-bit floats with
// a scale (Micikevicius et al., "FP8 Formats for Deep Learning", 2022).

#ifndef MILLRACE_KERNELS_POINTWISE_CAST_H_
#define MILLRACE_KERNELS_POINTWISE_CAST_H_

#include <bit>
#include <cstdint>

#include "absl/status/status.h"

#if defined(__CUDACC__)
#define MILLRACE_HOST_DEVICE __host__ __device__
#else
#define MILLRACE_HOST_DEVICE
#endif

namespace millrace {

// Sign, exponent and mantissa bits: 1-4-3 without infinities, up to 448; and
// 1-5-2, up to 57344.
enum class Float8Format { kE4m3, kE5m2 };

// To nearest even; what is too large, infinity too, becomes the largest value,
// and NaN stays NaN.
uint8_t EncodeFloat8(float x, Float8Format format);
float DecodeFloat8(uint8_t bits, Float8Format format);

// The largest finite value.
MILLRACE_HOST_DEVICE inline float Float8Max(Float8Format format) {
  return format == Float8Format::kE4m3 ? 448.0f : 57344.0f;
}

// Current scaling: a tensor whose largest magnitude is `amax` is multiplied by
// Float8Scale(amax) before it is rounded, so that amax becomes Float8Max(). One
// stored unit then means Float8Unit(amax). Each is one division in fp32, with
// the same bits on CPUs and GPUs.
//
// Both are one if amax is zero. Both are NaN if amax is NaN or infinite, which
// turns every stored value into NaN. An amax below kFloat8LeastAmax counts as
// kFloat8LeastAmax, so that neither overflows nor loses bits.
inline constexpr float kFloat8LeastAmax = 0x1p-100f;

MILLRACE_HOST_DEVICE inline float Float8Scale(float amax, Float8Format format) {
  if (amax == 0.0f) return 1.0f;
  const float not_finite = amax - amax;  // Zero for finite numbers, else NaN.
  if (not_finite != 0.0f) return not_finite;
  return Float8Max(format) /
         (amax < kFloat8LeastAmax ? kFloat8LeastAmax : amax);
}
MILLRACE_HOST_DEVICE inline float Float8Unit(float amax, Float8Format format) {
  if (amax == 0.0f) return 1.0f;
  const float not_finite = amax - amax;
  if (not_finite != 0.0f) return not_finite;
  return (amax < kFloat8LeastAmax ? kFloat8LeastAmax : amax) /
         Float8Max(format);
}

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
  uint8_t* y;             // [rows, columns]; may be null.
  uint8_t* y_transposed;  // [columns, rows]; may be null.
  // Not null: becomes the larger of what it was and the largest |x|; NaN counts
  // as larger than all.
  float* amax;
  const float* x;  // [rows, columns]
  int64_t rows;    // Zero is allowed and does nothing.
  int64_t columns;
  float scale;
  Float8Format format;
};

// Returns InvalidArgument if rows is negative, or columns or num_threads below
// one. Results do not depend on num_threads.
absl::Status QuantizeFloat8(const QuantizeFloat8Args& args, int num_threads);

// The same in plain loops.
void QuantizeFloat8Reference(const QuantizeFloat8Args& args);

// The largest magnitude alone.
struct AmaxArgs {
  float* amax;     // As in QuantizeFloat8Args, but not null.
  const float* x;  // [num_elements]
  int64_t num_elements;
};
absl::Status Amax(const AmaxArgs& args, int num_threads);

// y = unit * the value of x.
struct DecodeFloat8Args {
  float* y;          // [num_elements]; apart from x.
  const uint8_t* x;  // [num_elements]
  int64_t num_elements;
  float unit;
  Float8Format format;
};
absl::Status DecodeFloat8(const DecodeFloat8Args& args, int num_threads);

// y = the transpose of x, byte by byte.
struct TransposeFloat8Args {
  uint8_t* y;        // [columns, rows]; apart from x.
  const uint8_t* x;  // [rows, columns]
  int64_t rows;      // Zero is allowed and does nothing.
  int64_t columns;
};
absl::Status TransposeFloat8(const TransposeFloat8Args& args, int num_threads);

}  // namespace millrace

#undef MILLRACE_HOST_DEVICE

#endif  // MILLRACE_KERNELS_POINTWISE_CAST_H_
