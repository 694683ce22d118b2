// The forward pass of RMSNorm and LayerNorm of bf16 rows, alone or of a sum.

#ifndef MILLRACE_KERNELS_NORM_NORM_BF16_FORWARD_CUH_
#define MILLRACE_KERNELS_NORM_NORM_BF16_FORWARD_CUH_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/amax.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/norm/norm_bf16.cuh"

namespace millrace::gpu {

// Rows are [num_tokens, 8 num_vectors] bf16, statistics [num_tokens].
struct NormForward {
  void* residual = nullptr;  // With delta.
  void* y;
  float* mean = nullptr;  // For LayerNorm, as is bias.
  float* rstd;
  const void* x;
  const void* delta = nullptr;  // Normalises x + delta, rounded to bf16.
  const void* weight;
  const void* bias = nullptr;
  int64_t num_tokens;
  int num_vectors;
  float epsilon;
  float* amax = nullptr;  // Raised to the largest |y|.
};

// Vector `idx` of y.
template <NormKind kKind, NormWeight kWeight>
__device__ __forceinline__ uint4 Normalise(const NormForward& p,
                                           const Float8& x, int idx, float mean,
                                           float rstd) {
  const Float8 weight = LoadWeights<kWeight>(p.weight, idx);
  Float8 bias{};
  if constexpr (kKind == NormKind::kLayer) {
    bias = LoadWeights<kWeight>(p.bias, idx);
  }
  Float8 y;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    y.v[j] = (x.v[j] - mean) * rstd * weight.v[j] + bias.v[j];
  }
  return Pack8(y);
}

// kThreadsPerRow threads a row, which stays in registers between its two uses.
// Limited by memory bandwidth.
template <NormKind kKind, bool kResidual, NormWeight kWeight, typename Row>
__global__ void __launch_bounds__(Row::kNumThreads)
    NormForwardKernel(const NormForward p) {
  constexpr int kVectors = Row::kVectorsPerThread;
  __shared__ float scratch[2][Row::kNumThreads / kWarpSize];
  const int lane = threadIdx.x % Row::kThreadsPerRow;
  const int64_t row =
      int64_t{blockIdx.x} * Row::kRows + threadIdx.x / Row::kThreadsPerRow;
  // Rows past the end have no vectors, but take part in the shuffles.
  const int num_vectors = row < p.num_tokens ? p.num_vectors : 0;
  const int64_t start = row * p.num_vectors;
  auto idx = [&](int i) { return lane + i * Row::kThreadsPerRow; };

  // Nothing stands between the loads, so that all of them are under way at
  // once; what lies past the row is zero.
  auto load = [&](const void* rows, int i) {
    return idx(i) < num_vectors
               ? Load16Streaming(static_cast<const uint4*>(rows) + start +
                                 idx(i))
               : uint4{};
  };
  uint4 x[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) x[i] = load(p.x, i);
  if constexpr (kResidual) {
    constexpr int kAtOnce = kVectors < 4 ? kVectors : 4;  // Registers end.
#pragma unroll
    for (int i = 0; i < kVectors; i += kAtOnce) {
      uint4 delta[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) delta[k] = load(p.delta, i + k);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        Float8 sum = Unpack8(x[i + k]);
        const Float8 term = Unpack8(delta[k]);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum.v[j] += term.v[j];
        x[i + k] = Pack8(sum);
      }
    }
  }

  const float inverse_hidden = 1.0f / static_cast<float>(8 * p.num_vectors);
  float mean = 0.0f;
  if constexpr (kKind == NormKind::kLayer) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Float8 value = Unpack8(x[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += value.v[j];
    }
    mean = RowSum<Row>(sum, scratch[0]) * inverse_hidden;
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (kKind == NormKind::kRms || idx(i) < num_vectors) {
      const Float8 value = Unpack8(x[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float centred = value.v[j] - mean;
        squares += centred * centred;
      }
    }
  }
  const float variance = RowSum<Row>(squares, scratch[1]) * inverse_hidden;
  const float rstd = rsqrtf(variance + p.epsilon);
  if (lane == 0 && row < p.num_tokens) {
    p.rstd[row] = rstd;
    if constexpr (kKind == NormKind::kLayer) p.mean[row] = mean;
  }

  // Also where nobody asks for it: a branch would keep the loads of weights
  // apart.
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (idx(i) < num_vectors) {
      if constexpr (kResidual) {
        Store16Streaming(static_cast<uint4*>(p.residual) + start + idx(i),
                         x[i]);
      }
      const uint4 y =
          Normalise<kKind, kWeight>(p, Unpack8(x[i]), idx(i), mean, rstd);
      Store16Streaming(static_cast<uint4*>(p.y) + start + idx(i), y);
      largest = LargerPair(largest, y);
    }
  }
  if (p.amax != nullptr) RaiseAmax<Row::kNumThreads>(p.amax, largest);
}

inline constexpr int kLongForwardThreads = 1024;

// One block a row too long for registers: the first pass writes the sum, the
// others read it again, from the second-level cache. Limited by that cache.
template <NormKind kKind, bool kResidual, NormWeight kWeight>
__global__ void __launch_bounds__(kLongForwardThreads, 1)
    LongNormForwardKernel(const NormForward p) {
  using Row = RowShape<kLongForwardThreads, 1>;
  __shared__ float scratch[2][Row::kNumThreads / kWarpSize];
  const int64_t row = blockIdx.x;
  const int64_t start = row * p.num_vectors;
  const auto* x_row = static_cast<const uint4*>(p.x) + start;
  const auto* delta_row = static_cast<const uint4*>(p.delta) + start;
  auto* residual_row = static_cast<uint4*>(p.residual) + start;
  // A thread reads only what it wrote itself.
  const uint4* normalised = kResidual ? residual_row : x_row;
  auto add = [&](int idx) {
    uint4 x = Load16(x_row + idx);
    if constexpr (kResidual) {
      Float8 sum = Unpack8(x);
      const Float8 delta = Unpack8(Load16Streaming(delta_row + idx));
#pragma unroll
      for (int j = 0; j < 8; ++j) sum.v[j] += delta.v[j];
      x = Pack8(sum);
      Store16(residual_row + idx, x);
    }
    return Unpack8(x);
  };

  const float inverse_hidden = 1.0f / static_cast<float>(8 * p.num_vectors);
  float mean = 0.0f;
  if constexpr (kKind == NormKind::kLayer) {
    float sum = 0.0f;
#pragma unroll 4
    for (int idx = threadIdx.x; idx < p.num_vectors; idx += Row::kNumThreads) {
      const Float8 value = add(idx);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += value.v[j];
    }
    mean = RowSum<Row>(sum, scratch[0]) * inverse_hidden;
  }
  float squares = 0.0f;
#pragma unroll 4
  for (int idx = threadIdx.x; idx < p.num_vectors; idx += Row::kNumThreads) {
    const Float8 value = kKind == NormKind::kLayer
                             ? Unpack8(Load16(normalised + idx))
                             : add(idx);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float centred = value.v[j] - mean;
      squares += centred * centred;
    }
  }
  const float rstd =
      rsqrtf(RowSum<Row>(squares, scratch[1]) * inverse_hidden + p.epsilon);
  if (threadIdx.x == 0) {
    p.rstd[row] = rstd;
    if constexpr (kKind == NormKind::kLayer) p.mean[row] = mean;
  }
  // Also where nobody asks for it: a branch would keep the loads of weights
  // apart.
  uint32_t largest = 0;
#pragma unroll 4
  for (int idx = threadIdx.x; idx < p.num_vectors; idx += Row::kNumThreads) {
    const Float8 value = Unpack8(Load16(normalised + idx));
    const uint4 y = Normalise<kKind, kWeight>(p, value, idx, mean, rstd);
    Store16Streaming(static_cast<uint4*>(p.y) + start + idx, y);
    largest = LargerPair(largest, y);
  }
  if (p.amax != nullptr) RaiseAmax<Row::kNumThreads>(p.amax, largest);
}

template <NormKind kKind, bool kResidual, NormWeight kWeight, typename Row>
absl::Status LaunchNormForwardRow(const NormForward& p, cudaStream_t stream) {
  const int64_t num_blocks = (p.num_tokens + Row::kRows - 1) / Row::kRows;
  NormForwardKernel<kKind, kResidual, kWeight, Row>
      <<<static_cast<unsigned>(num_blocks), Row::kNumThreads, 0, stream>>>(p);
  return CudaStatus(cudaGetLastError(), "launch the forward pass of a norm");
}

// Threads of a row as measured on H200 before there was a table. More vectors
// and fewer threads suit LayerNorm of a sum, which holds the most in registers
// while it waits for two sums, and short rows without delta, of which fewer
// bytes are under way.
template <NormKind kKind, bool kResidual>
int64_t ForwardThreads(int64_t row_class) {
  constexpr bool kIsHeavy = kResidual && kKind == NormKind::kLayer;
  switch (row_class) {
    case 8:
      return 8;
    case 32:
    case 64:
      return 32;
    case 128:
      return 128;
    case 256:
      return kResidual ? 256 : 128;
    case 512:
      return kIsHeavy ? 128 : 256;
    case 1024:
      return 256;
    case 2048:
      return kIsHeavy ? 256 : 512;
    default:
      return 1024;
  }
}

template <NormKind kKind, bool kResidual,
          NormWeight kWeight = NormWeight::kBf16>
absl::Status LaunchNormForward(const NormForward& p, cudaStream_t stream) {
  using Way = NormWay<absl::Status (*)(const NormForward&, cudaStream_t)>;
#define WAY(threads, vectors)                             \
  {                                                       \
    threads *vectors, threads,                            \
        &LaunchNormForwardRow<kKind, kResidual, kWeight,  \
                              RowShape<threads, vectors>> \
  }
  static constexpr Way kWays[] = {
      WAY(8, 1),                                              // 64 elements
      WAY(8, 4),   WAY(32, 1),                                // 256
      WAY(8, 8),   WAY(32, 2),   WAY(64, 1),                  // 512
      WAY(32, 4),  WAY(64, 2),   WAY(128, 1),                 // 1024
      WAY(32, 8),  WAY(64, 4),   WAY(128, 2),  WAY(256, 1),   // 2048
      WAY(64, 8),  WAY(128, 4),  WAY(256, 2),  WAY(512, 1),   // 4096
      WAY(128, 8), WAY(256, 4),  WAY(512, 2),  WAY(1024, 1),  // 8192
      WAY(256, 8), WAY(512, 4),  WAY(1024, 2),                // 16384
      WAY(512, 8), WAY(1024, 4),                              // 32768
  };
#undef WAY
  if (p.num_tokens == 0) return absl::OkStatus();
  const int64_t row_class = NormRowClass(p.num_vectors);
  if (row_class <= 4096) {
    const int64_t num_bytes =
        p.num_tokens * p.num_vectors * (kResidual ? 64 : 32);
    const int64_t threads =
        TunedChoice(TunedKernel::kNormForward,
                    {kKind == NormKind::kLayer, kResidual, row_class,
                     IsCachedClass(num_bytes)},
                    {ForwardThreads<kKind, kResidual>(row_class)})[0];
    return FindNormWay(kWays, p.num_vectors, threads).launch(p, stream);
  }
  LongNormForwardKernel<kKind, kResidual, kWeight>
      <<<static_cast<unsigned>(p.num_tokens), kLongForwardThreads, 0, stream>>>(
          p);
  return CudaStatus(cudaGetLastError(), "launch the forward pass of a norm");
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_NORM_NORM_BF16_FORWARD_CUH_
