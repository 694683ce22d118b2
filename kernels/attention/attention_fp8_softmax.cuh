// The softmax of attention_fp8_forward_sm90.cu, on the accumulator of one block
// of scores: base-2 exponentials that fit e4m3, their row sums, and the running
// maxima. It, not the tensor cores, limits the kernel, so some exponentials are
// polynomials on the multipliers instead (FlashAttention-4 does so on
// Blackwell; e4m3 asks for degree two only).

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_SOFTMAX_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_SOFTMAX_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/wgmma_fp8.cuh"

namespace millrace::fp8 {

// Exponentials reach 2^8, so that small ones stay clear of e4m3's underflow.
inline constexpr float kExponentOffset = 8.0f;

// Running softmax of the two rows a thread shares with its quad.
struct RowState {
  // No less than any score so far (in base 2), and whole, so that it seldom
  // changes and older terms seldom need a factor.
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};  // This thread's columns only.
};

// Turns the raw products of one block of keys into exponentials.
struct BlockScale {
  float factor;  // From products to base-2 exponents.
  float weight;  // The block's value scale in the output's unit, one at most.
};
inline constexpr float kLeastWeight = 5.4210109e-20f;  // 2^-64

// Hides what a row must not see: thread t of the warpgroup holds of row
// `first_row`, and of the row 8 further, the keys that wgmma.cuh says, counted
// from `first_key`.
template <bool kCausal, int kSize>
__device__ __forceinline__ void Mask(int first_key, int first_row,
                                     int sequence_length, float (&s)[kSize]) {
  const int lane = threadIdx.x % hopper::kWarpSize;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const int key = first_key + i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int row = first_row + i / 2 % 2 * 8;
    if ((kCausal && key > row) || key >= sequence_length) s[i] = -INFINITY;
  }
}

// Hides the keys before the first that each of the two rows sees.
template <int kSize>
__device__ __forceinline__ void MaskBefore(int first_key,
                                           const int (&first_seen)[2],
                                           float (&s)[kSize]) {
  const int lane = threadIdx.x % hopper::kWarpSize;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const int key = first_key + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (key < first_seen[i / 2 % 2]) s[i] = -INFINITY;
  }
}

// Raises the rows' maxima to those of `s`, in base 2.
template <int kSize>
__device__ __forceinline__ void RaiseMaxima(const float (&s)[kSize],
                                            float factor, float (&rows)[2]) {
  // Two chains a row: one alone would wait for itself.
  float maximum[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
  for (int i = 4; i < kSize; ++i) {
    maximum[i % 4] = fmaxf(maximum[i % 4], s[i]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = fmaxf(maximum[2 * r], maximum[2 * r + 1]);
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    rows[r] = fmaxf(rows[r], ceilf(largest * factor));
  }
}

// A row that has seen nothing yet keeps a finite base.
__device__ __forceinline__ float FiniteOrZero(float maximum) {
  return maximum == -INFINITY ? 0.0f : maximum;
}

// Whether an element takes the polynomial. The share of these balances the
// units.
template <int kEighths>
__device__ constexpr bool OnPolynomial(int i) {
  return (kEighths >= 1 && i % 8 == 1) || (kEighths >= 2 && i % 8 == 6) ||
         (kEighths >= 3 && i % 8 == 3) || (kEighths >= 4 && i % 8 == 4);
}

// Elements [kBegin, kEnd) become weight * 2^(s * factor - maximum + 8); adds
// them to `sum`, element i to i % 4.
template <int kEighths, int kBegin, int kEnd, int kSize>
__device__ __forceinline__ void Exponentiate(const BlockScale& scale,
                                             const float (&maximum)[2],
                                             float (&s)[kSize],
                                             float (&sum)[4]) {
  // For the polynomial x = s * factor - maximum + 8 is first pressed into
  // [-56, 8] as t = (x + 56) / 64, by saturation, then split into a whole part,
  // which rounding at 1.5 * 2^23 leaves in the low bits, and a rest. Neither
  // 2^-56 nor 2^-56 kLeastWeight has left fp32's range.
  constexpr float kRound = 12582912.0f - 56.0f;
  const float log2_weight = __log2f(scale.weight);
  const float factor_64 = scale.factor * (1.0f / 64.0f);
  float offset[2], offset_64[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float base = kExponentOffset - FiniteOrZero(maximum[r]);
    offset[r] = base + log2_weight;
    offset_64[r] = (base + 56.0f) * (1.0f / 64.0f);
  }
  // 2^f for f in [-1/2, 1/2], within 1.9e-3; the mean error is 1e-4.
  const float c0 = 1.0004f * scale.weight;
  const float c1 = 0.704f * scale.weight;
  const float c2 = 0.24f * scale.weight;
#pragma unroll
  for (int i = kBegin; i < kEnd; ++i) {
    const int r = i / 2 % 2;
    if (OnPolynomial<kEighths>(i)) {
      const float t = __saturatef(fmaf(s[i], factor_64, offset_64[r]));
      const float rounded = fmaf(t, 64.0f, kRound);
      const float f = fmaf(t, 64.0f, kRound - rounded);
      const float y = fmaf(fmaf(c2, f, c1), f, c0);
      s[i] =
          __int_as_float(__float_as_int(y) + (__float_as_int(rounded) << 23));
    } else {
      s[i] = hopper::Exp2(fmaf(s[i], scale.factor, offset[r]));
    }
    sum[i % 4] += s[i];
  }
}

// The factors that older terms need after a block.
struct Rescale {
  float row[2];
};

// Turns the products `s` of one block into e4m3 exponentials, operands of the
// product with the values, and updates the rows. `between` runs once kPart of
// them are under way; before it the last block's operands may be in use.
//
// Maxima of a part at a time, so as to find one part's beside the exponentials
// of another, cost 10 % of the kernel's speed on one H200.
template <int kPart, int kEighths, int kSize, typename Between>
__device__ __forceinline__ Rescale
SoftmaxBlock(const BlockScale& scale, float (&s)[kSize], RowState& rows,
             uint32_t (&operands)[kSize / 16][4], const Between& between) {
  float maximum[2] = {rows.maximum[0], rows.maximum[1]};
  RaiseMaxima(s, scale.factor, maximum);
  float sum[4] = {};
  Exponentiate<kEighths, 0, kPart>(scale, maximum, s, sum);
  Rescale rescale;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rescale.row[r] = hopper::Exp2(rows.maximum[r] - FiniteOrZero(maximum[r]));
    rows.maximum[r] = maximum[r];
  }
  between();
#pragma unroll
  for (int k = 0; k < kPart / 16; ++k) {
    hopper::PackFp8Operand(s, k, operands[k]);
  }
  Exponentiate<kEighths, kPart, kSize>(scale, rows.maximum, s, sum);
  const float inverse_weight = __fdividef(1.0f, scale.weight);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows.sum[r] = fmaf(rows.sum[r], rescale.row[r],
                       (sum[2 * r] + sum[2 * r + 1]) * inverse_weight);
  }
#pragma unroll
  for (int k = kPart / 16; k < kSize / 16; ++k) {
    hopper::PackFp8Operand(s, k, operands[k]);
  }
  return rescale;
}

}  // namespace millrace::fp8

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_SOFTMAX_CUH_
