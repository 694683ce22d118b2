// Helpers that the tests of e4m3 kernels share: e4m3 on the host, and where the
// values of attention_fp8.h lie.

#ifndef MILLRACE_TESTS_KERNELS_FP8_TESTING_H_
#define MILLRACE_TESTS_KERNELS_FP8_TESTING_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention/attention_fp8.h"

namespace millrace {

using Fp8s = std::vector<uint8_t>;  // The bits of e4m3 values.

inline constexpr uint8_t kNanFp8 = 0x7F;

// All magnitudes, in ascending order: four bits of exponent with bias 7, three
// of mantissa; no infinity.
inline const std::array<double, kNanFp8>& Fp8Magnitudes() {
  static const auto magnitudes = [] {
    std::array<double, kNanFp8> values;
    for (int bits = 0; bits < kNanFp8; ++bits) {
      const int exponent = bits >> 3;
      const int mantissa = bits & 7;
      values[bits] = exponent == 0 ? std::ldexp(mantissa, -9)
                                   : std::ldexp(8 + mantissa, exponent - 10);
    }
    return values;
  }();
  return magnitudes;
}

inline double FromFp8(uint8_t bits) {
  if ((bits & 0x7F) == kNanFp8) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = Fp8Magnitudes()[bits & 0x7F];
  return bits & 0x80 ? -magnitude : magnitude;
}

// The nearest; of two equally near ones the even one.
inline uint8_t ToFp8(double value) {
  const auto& magnitudes = Fp8Magnitudes();
  const double magnitude = std::fabs(value);
  const auto above =
      std::lower_bound(magnitudes.begin() + 1, magnitudes.end() - 1, magnitude);
  const double up = *above - magnitude;
  const double down = magnitude - *(above - 1);
  int best = static_cast<int>(above - magnitudes.begin());
  if (down < up || (down == up && best % 2 == 1)) --best;
  return static_cast<uint8_t>(std::signbit(value) ? best | 0x80 : best);
}

// Where element `d` of key-value head `head` at token `t` of sequence `b` lies.
inline int64_t Fp8ValueOffset(const AttentionFp8Shape& shape, int64_t b,
                              int64_t head, int64_t t, int64_t d) {
  const int64_t padded = NumFp8KeyBlocks(shape) * kFp8KeyBlock;
  int position = 0;
  while (Fp8TokenAt(position) != t % 16) ++position;
  return ((b * shape.num_kv_heads + head) * padded + t / 32 * 32) *
             shape.head_dim +
         d / 8 * 256 + t % 32 / 16 * 128 + d % 8 * 16 + position;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_KERNELS_FP8_TESTING_H_
