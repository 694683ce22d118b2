// The common part of kernels over rows of bf16 logits: the softmax, its
// gradient, and the handling of elements beyond the vocabulary.

#ifndef MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_BF16_SOFTMAX_CUH_
#define MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_BF16_SOFTMAX_CUH_

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/vector.cuh"
#include "kernels/vocabulary/cross_entropy_bf16_rows.h"

namespace millrace::ce {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr int kElements = 8;  // In a 16-byte access.
inline constexpr uint32_t kMinusInfinities = 0xFF80FF80;

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The softcap of logits, where kCapped has one. Logits beyond the vocabulary,
// -inf, stay.
template <bool kCapped>
struct Softcap {
  float cap;
  float twice_inverse;  // 2 log2(e) / cap

  __device__ __forceinline__ explicit Softcap(float softcap)
      : cap(softcap), twice_inverse(2.0f * kLog2E / softcap) {}

  // tanh(z) = 1 - 2 / (1 + exp(2 z)).
  __device__ __forceinline__ float Of(float x) const {
    if constexpr (!kCapped) return x;
    const float tanh = 1.0f - __fdividef(2.0f, 1.0f + Exp2(x * twice_inverse));
    return x == -INFINITY ? x : cap * tanh;
  }
  // Where it gave this logit.
  __device__ __forceinline__ float Slope(float capped) const {
    if constexpr (!kCapped) return 1.0f;
    const float share = capped / cap;
    return capped == -INFINITY ? 0.0f : 1.0f - share * share;
  }
};

// The maximum of some logits, and the sum of exp(logit - maximum).
struct alignas(8) SoftmaxSum {
  float maximum;
  float sum;
};

// Returns the reference of exponents. Logits that are all -inf (a shard of
// masked words) must not become NaN.
__device__ __forceinline__ float Finite(float maximum) {
  return maximum == -INFINITY ? 0.0f : maximum;
}

__device__ __forceinline__ SoftmaxSum Combine(SoftmaxSum a, SoftmaxSum b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  const float base = Finite(maximum) * kLog2E;
  return {maximum, a.sum * Exp2(fmaf(a.maximum, kLog2E, -base)) +
                       b.sum * Exp2(fmaf(b.maximum, kLog2E, -base))};
}

// Eight logits of a row, from the `first` on; those beyond the vocabulary
// become -inf, which adds nothing to a sum and has no gradient.
__device__ __forceinline__ uint4 MaskLogits(uint4 raw, int first,
                                            int vocab_rows) {
  const int num_valid = vocab_rows - first;
  if (num_valid < kElements) {
    uint32_t* pairs = reinterpret_cast<uint32_t*>(&raw);
#pragma unroll
    for (int pair = 0; pair < kElements / 2; ++pair) {
      if (2 * pair >= num_valid) {
        pairs[pair] = kMinusInfinities;
      } else if (2 * pair + 1 >= num_valid) {
        pairs[pair] = (pairs[pair] & 0xFFFF) | (kMinusInfinities << 16);
      }
    }
  }
  return raw;
}

__device__ __forceinline__ float Maximum(uint4 raw) {
  const auto pair = [](uint32_t bits) {
    return *reinterpret_cast<const __nv_bfloat162*>(&bits);
  };
  const __nv_bfloat162 most = __hmax2(__hmax2(pair(raw.x), pair(raw.y)),
                                      __hmax2(pair(raw.z), pair(raw.w)));
  return fmaxf(__low2float(most), __high2float(most));
}

// The sum of 2^(logit log2(e) - base).
template <bool kCapped>
__device__ __forceinline__ float SumExponentials(uint4 raw, float base,
                                                 const Softcap<kCapped>& cap) {
  gpu::Float8 x = gpu::Unpack8(raw);
#pragma unroll
  for (float& logit : x.v) logit = cap.Of(logit);
  float even = 0.0f;
  float odd = 0.0f;
#pragma unroll
  for (int i = 0; i < kElements; i += 2) {
    even += Exp2(fmaf(x.v[i], kLog2E, -base));
    odd += Exp2(fmaf(x.v[i + 1], kLog2E, -base));
  }
  return even + odd;
}

// How a row's logits become gradients:
// factor 2^(logit log2(e) - base), less `one` at the target.
struct RowGradient {
  float base;
  float factor;
  float one;
};

template <bool kCapped>
__device__ __forceinline__ uint4 Gradients(uint4 raw, RowGradient gradient,
                                           const Softcap<kCapped>& cap) {
  gpu::Float8 x = gpu::Unpack8(raw);
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const float logit = cap.Of(x.v[i]);
    x.v[i] = gradient.factor * Exp2(fmaf(logit, kLog2E, -gradient.base));
    if constexpr (kCapped) x.v[i] *= cap.Slope(logit);
  }
  return gpu::Pack8(x);
}

// lse = maximum + log_sum.
__device__ __forceinline__ RowGradient
MakeGradient(const CrossEntropyWeights& weights, float maximum, float log_sum) {
  const float scale = weights.device_token_scale == nullptr
                          ? weights.token_scale
                          : weights.token_scale * *weights.device_token_scale;
  return {.base = (maximum + log_sum) * kLog2E,
          .factor = scale * fmaf(2.0f * weights.z_loss, maximum + log_sum, 1),
          .one = scale};
}

// Returns a token's loss, not yet scaled.
__device__ __forceinline__ double Loss(const CrossEntropyWeights& weights,
                                       float maximum, float log_sum,
                                       float target_logit) {
  const double lse = double{maximum} + log_sum;
  return lse - target_logit + weights.z_loss * lse * lse;
}

// Returns the gradient of the target's logit, which replaces that of
// Gradients(). `slope`: the softcap's there.
__device__ __forceinline__ __nv_bfloat16 TargetGradient(float logit,
                                                        RowGradient gradient,
                                                        float slope = 1.0f) {
  return __float2bfloat16(
      slope * (gradient.factor * Exp2(fmaf(logit, kLog2E, -gradient.base)) -
               gradient.one));
}

}  // namespace millrace::ce

#endif  // MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_BF16_SOFTMAX_CUH_
