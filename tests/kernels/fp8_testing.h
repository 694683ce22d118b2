// What the tests of e4m3 kernels share: e4m3 on the host, and where the values
// of attention_fp8.h lie.

#ifndef MILLRACE_TESTS_KERNELS_FP8_TESTING_H_
#define MILLRACE_TESTS_KERNELS_FP8_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention_fp8.h"

namespace millrace {

using Fp8s = std::vector<uint8_t>;  // The bits of e4m3 values.

inline constexpr uint8_t kNanFp8 = 0x7F;

// Sign, four bits of exponent with bias 7, three of mantissa; no infinity.
inline double FromFp8(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double magnitude = exponent == 0
                               ? std::ldexp(mantissa, -9)
                               : std::ldexp(8 + mantissa, exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}

// The nearest, by trying all.
inline uint8_t ToFp8(double value) {
  uint8_t best = 0;
  for (int magnitude = 1; magnitude < 0x7F; ++magnitude) {
    if (std::fabs(FromFp8(magnitude) - std::fabs(value)) <
        std::fabs(FromFp8(best) - std::fabs(value))) {
      best = static_cast<uint8_t>(magnitude);
    }
  }
  return std::signbit(value) ? best | 0x80 : best;
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
