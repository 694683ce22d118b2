// Backward pass of norms for rows too long for one block's registers. The
// argument struct and the final sum are shared with norm_bf16_backward.cuh.

#ifndef MILLRACE_KERNELS_NORM_NORM_BF16_BACKWARD_LONG_CUH_
#define MILLRACE_KERNELS_NORM_NORM_BF16_BACKWARD_LONG_CUH_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "kernels/cuda/amax.cuh"
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/norm/norm_bf16.cuh"

namespace millrace::gpu {

// Rows are [num_tokens, 8 num_vectors] bf16, statistics [num_tokens].
struct NormBackward {
  void* d_x;
  const void* d_y;
  const void* x;
  const void* d_residual;  // Null for none.
  const void* weight;
  const float* mean;  // Null for RMSNorm.
  const float* rstd;
  // The blocks' partial sums of d_weight, [num_partials, hidden], then for
  // LayerNorm as many of d_bias.
  float* partials;
  int64_t num_tokens;
  int num_vectors;
  int num_stages;  // For the prefetch.
  float* amax;     // Raised to the largest |d_x|; null: not wanted.
};

// The launcher's arguments beside those of the kernel.
struct NormBackwardOutputs {
  float* d_weight;
  float* d_bias;  // Null for RMSNorm.
  bool accumulate;
};

// The sums of `num_partials` rows that the kernels left.
inline absl::Status LaunchNormColumnSums(const NormBackward& p,
                                         int64_t num_partials,
                                         const NormBackwardOutputs& outputs,
                                         cudaStream_t stream) {
  const int64_t hidden = 8 * int64_t{p.num_vectors};
  return LaunchColumnSum(
      {.sums = {{outputs.d_weight, p.partials, num_partials},
                {outputs.d_bias, p.partials + num_partials * hidden,
                 num_partials}},
       .num_sums = outputs.d_bias == nullptr ? 1 : 2,
       .num_columns = hidden,
       .accumulate = outputs.accumulate},
      stream);
}

__device__ __forceinline__ void Store8Floats(float* address, const Float8& x) {
  auto* out = reinterpret_cast<float4*>(address);
  out[0] = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
  out[1] = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
}

inline constexpr int kLongNormThreads = 1024;
inline constexpr int kLongWeightThreads = 256;
inline constexpr int kLongNormPartials = 32;

// One block a row, which it reads twice: the second time from the second-level
// cache. Limited by that cache.
template <NormKind kKind, NormWeight kWeight>
__global__ void __launch_bounds__(kLongNormThreads, 1)
    LongNormBackwardKernel(const NormBackward p) {
  using Row = RowShape<kLongNormThreads, 1>;
  __shared__ float scratch[2 * kLongNormThreads / kWarpSize];
  const int64_t row = blockIdx.x;
  const int64_t start = row * p.num_vectors;
  const auto* d_y_row = static_cast<const uint4*>(p.d_y) + start;
  const auto* x_row = static_cast<const uint4*>(p.x) + start;
  const float inverse_hidden = 1.0f / static_cast<float>(8 * p.num_vectors);
  const float rstd = p.rstd[row];
  float mean = 0.0f;
  if constexpr (kKind == NormKind::kLayer) mean = p.mean[row];

  // Sums of g n, with g = d_y weight and n = (x - mean) rstd, and of g.
  float sums[kKind == NormKind::kLayer ? 2 : 1] = {};
#pragma unroll 2
  for (int idx = threadIdx.x; idx < p.num_vectors; idx += kLongNormThreads) {
    const Float8 d_y = Unpack8(Load16(d_y_row + idx));
    const Float8 x = Unpack8(Load16(x_row + idx));
    const Float8 w = LoadWeights<kWeight>(p.weight, idx);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float g = d_y.v[j] * w.v[j];
      sums[0] += g * (x.v[j] - mean);
      if constexpr (kKind == NormKind::kLayer) sums[1] += g;
    }
  }
  RowSums<Row>(sums, scratch);
  const float mean_gn = sums[0] * inverse_hidden * rstd;
  float mean_g = 0.0f;
  if constexpr (kKind == NormKind::kLayer) mean_g = sums[1] * inverse_hidden;
  uint32_t largest = 0;
#pragma unroll 2
  for (int idx = threadIdx.x; idx < p.num_vectors; idx += kLongNormThreads) {
    const Float8 d_y = Unpack8(Load16(d_y_row + idx));
    const Float8 x = Unpack8(Load16(x_row + idx));
    const Float8 w = LoadWeights<kWeight>(p.weight, idx);
    Float8 d_residual{};
    if (p.d_residual != nullptr) {
      d_residual = Unpack8(Load16Streaming(
          static_cast<const uint4*>(p.d_residual) + start + idx));
    }
    Float8 d_x;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float n = (x.v[j] - mean) * rstd;
      d_x.v[j] =
          rstd * (d_y.v[j] * w.v[j] - mean_g - n * mean_gn) + d_residual.v[j];
    }
    const uint4 packed = Pack8(d_x);
    Store16Streaming(static_cast<uint4*>(p.d_x) + start + idx, packed);
    largest = LargerPair(largest, packed);
  }
  if (p.amax != nullptr) RaiseAmax<kLongNormThreads>(p.amax, largest);
}

// One thread 8 columns of every gridDim.y-th row. Limited by memory bandwidth.
template <NormKind kKind>
__global__ void __launch_bounds__(kLongWeightThreads)
    LongNormWeightKernel(const NormBackward p) {
  const int idx = blockIdx.x * kLongWeightThreads + threadIdx.x;
  if (idx >= p.num_vectors) return;
  Float8 d_weight{};
  Float8 d_bias{};
#pragma unroll 4
  for (int64_t row = blockIdx.y; row < p.num_tokens; row += gridDim.y) {
    const int64_t at = row * p.num_vectors + idx;
    const Float8 d_y =
        Unpack8(Load16Streaming(static_cast<const uint4*>(p.d_y) + at));
    const Float8 x =
        Unpack8(Load16Streaming(static_cast<const uint4*>(p.x) + at));
    const float rstd = __ldg(p.rstd + row);
    float mean = 0.0f;
    if constexpr (kKind == NormKind::kLayer) mean = __ldg(p.mean + row);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      d_weight.v[j] += d_y.v[j] * ((x.v[j] - mean) * rstd);
      if constexpr (kKind == NormKind::kLayer) d_bias.v[j] += d_y.v[j];
    }
  }
  const int64_t hidden = 8 * int64_t{p.num_vectors};
  Store8Floats(p.partials + blockIdx.y * hidden + 8 * idx, d_weight);
  if constexpr (kKind == NormKind::kLayer) {
    Store8Floats(p.partials + (gridDim.y + blockIdx.y) * hidden + 8 * idx,
                 d_bias);
  }
}

template <NormKind kKind, NormWeight kWeight>
absl::Status LaunchNormBackwardLong(const NormBackward& p,
                                    const NormBackwardOutputs& outputs,
                                    cudaStream_t stream) {
  const dim3 grid(
      static_cast<unsigned>((p.num_vectors + kLongWeightThreads - 1) /
                            kLongWeightThreads),
      static_cast<unsigned>(kLongNormPartials));
  LongNormWeightKernel<kKind><<<grid, kLongWeightThreads, 0, stream>>>(p);
  RETURN_IF_ERROR(
      CudaStatus(cudaGetLastError(), "launch the weight gradient of a norm"));
  LongNormBackwardKernel<kKind, kWeight>
      <<<static_cast<unsigned>(p.num_tokens), kLongNormThreads, 0, stream>>>(p);
  RETURN_IF_ERROR(
      CudaStatus(cudaGetLastError(), "launch the backward pass of a norm"));
  return LaunchNormColumnSums(p, kLongNormPartials, outputs, stream);
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_NORM_NORM_BF16_BACKWARD_LONG_CUH_
