// The backward pass of RMSNorm and LayerNorm of bf16 rows.

#ifndef MILLRACE_KERNELS_NORM_NORM_BF16_BACKWARD_CUH_
#define MILLRACE_KERNELS_NORM_NORM_BF16_BACKWARD_CUH_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "kernels/cuda/amax.cuh"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/norm/norm_bf16.cuh"
#include "kernels/norm/norm_bf16_backward_long.cuh"

namespace millrace::gpu {

// Rows in flight for each row being worked on; more gained nothing.
inline constexpr int kMaxNormStages = 2;

template <typename Row>
struct BackwardRow : Row {
  // As many as have registers.
  static constexpr int kBlocksPerMultiprocessor =
      Row::kNumThreads > 256
          ? 1
          : (Row::kVectorsPerThread == 1 ? 3 : 2) * 256 / Row::kNumThreads;
  static constexpr int kStageVectors =
      3 * Row::kNumThreads * Row::kVectorsPerThread;
  static constexpr int kStageBytes = kStageVectors * 16;
};

// Adds up `sums` over the rows a block works on at a time and writes them to
// `out`, [8 num_vectors]. `shared` holds 8 floats for each vector of a block.
template <typename Row>
__device__ __forceinline__ void StorePartials(
    const Float8 (&sums)[Row::kVectorsPerThread], int num_vectors,
    float* shared, float* out) {
  const int lane = threadIdx.x % Row::kThreadsPerRow;
  if constexpr (Row::kRows == 1) {
#pragma unroll
    for (int i = 0; i < Row::kVectorsPerThread; ++i) {
      const int idx = lane + i * Row::kThreadsPerRow;
      if (idx < num_vectors) Store8Floats(out + 8 * idx, sums[i]);
    }
  } else {
    constexpr int kColumns = 8 * Row::kThreadsPerRow * Row::kVectorsPerThread;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Row::kVectorsPerThread; ++i) {
      const int idx = lane + i * Row::kThreadsPerRow;
      Store8Floats(
          shared + threadIdx.x / Row::kThreadsPerRow * kColumns + 8 * idx,
          sums[i]);
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 8 * num_vectors; c += Row::kNumThreads) {
      float sum = 0.0f;
#pragma unroll
      for (int r = 0; r < Row::kRows; ++r) sum += shared[r * kColumns + c];
      out[c] = sum;
    }
  }
}

// A vector of weights in registers, as they are stored.
template <NormWeight kWeight>
struct KeptWeights {
  uint4 raw{};
  __device__ __forceinline__ void Load(const void* weight, int idx) {
    raw = Load16(static_cast<const uint4*>(weight) + idx);
  }
  __device__ __forceinline__ Float8 Get() const { return Unpack8(raw); }
};
template <NormWeight kWeight>
requires(kWeight != NormWeight::kBf16) struct KeptWeights<kWeight> {
  Float8 values{};
  __device__ __forceinline__ void Load(const void* weight, int idx) {
    values = LoadWeights<kWeight>(weight, idx);
  }
  __device__ __forceinline__ Float8 Get() const { return values; }
};

// kThreadsPerRow threads a row; a block walks over rows, copies the next ones
// to shared memory meanwhile, and keeps its share of the gradients of the
// weights in registers. Each thread copies what it reads itself, so that only
// the sums over a row need a barrier. Limited by memory bandwidth.
template <NormKind kKind, NormWeight kWeight, typename Row>
__global__ void __launch_bounds__(Row::kNumThreads,
                                  Row::kBlocksPerMultiprocessor)
    NormBackwardKernel(const NormBackward p) {
  constexpr int kVectors = Row::kVectorsPerThread;
  constexpr int kTensorVectors = Row::kStageVectors / 3;
  extern __shared__ uint4 stages[];  // [num_stages, 3, kTensorVectors]
  __shared__ float scratch[2][2 * Row::kNumThreads / kWarpSize];
  LetNextKernelStart();
  const int lane = threadIdx.x % Row::kThreadsPerRow;
  const int group = threadIdx.x / Row::kThreadsPerRow;
  const int64_t step = int64_t{gridDim.x} * Row::kRows;
  const float inverse_hidden = 1.0f / static_cast<float>(8 * p.num_vectors);
  auto idx = [&](int i) { return lane + i * Row::kThreadsPerRow; };

  // d_y, x and d_residual of one row.
  auto prefetch = [&](int64_t row, int stage) {
    uint4* to = stages + stage * Row::kStageVectors + threadIdx.x;
    if (row < p.num_tokens) {
      const int64_t start = row * p.num_vectors;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (idx(i) < p.num_vectors) {
          const int64_t from = start + idx(i);
          CopyAsync16(to + i * Row::kNumThreads,
                      static_cast<const uint4*>(p.d_y) + from);
          CopyAsync16(to + i * Row::kNumThreads + kTensorVectors,
                      static_cast<const uint4*>(p.x) + from);
          if (p.d_residual != nullptr) {
            CopyAsync16(to + i * Row::kNumThreads + 2 * kTensorVectors,
                        static_cast<const uint4*>(p.d_residual) + from);
          }
        }
      }
    }
    CommitCopies();
  };
  struct Statistics {
    float mean, rstd;
  };
  auto statistics = [&](int64_t row) -> Statistics {
    if (row >= p.num_tokens) return {0.0f, 0.0f};
    return {kKind == NormKind::kLayer ? __ldg(p.mean + row) : 0.0f,
            __ldg(p.rstd + row)};
  };

  int64_t first = int64_t{blockIdx.x} * Row::kRows;  // The block's first row.
  for (int stage = 0; stage < p.num_stages; ++stage) {
    prefetch(first + group + stage * step, stage);
  }
  Statistics next = statistics(first + group);
  Float8 d_weight[kVectors] = {};
  Float8 d_bias[kVectors] = {};
  // Where a thread has many columns, registers are too few to keep the weights,
  // and sooner so for those of fp32.
  constexpr bool kKeepsWeights =
      kVectors < (kWeight == NormWeight::kBf16 ? 4 : 3) ||
      (kKind == NormKind::kRms && kWeight == NormWeight::kBf16);
  KeptWeights<kWeight> kept[kKeepsWeights ? kVectors : 1];
  if constexpr (kKeepsWeights) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (idx(i) < p.num_vectors) kept[i].Load(p.weight, idx(i));
    }
  }
  auto weight = [&](int i) {
    if constexpr (kKeepsWeights) {
      return kept[i].Get();
    } else {
      return LoadWeights<kWeight>(p.weight, idx(i));
    }
  };

  int stage = 0;
  int parity = 0;
  uint32_t largest = 0;
#pragma unroll 1
  for (; first < p.num_tokens; first += step) {
    const int64_t row = first + group;
    const int num_vectors = row < p.num_tokens ? p.num_vectors : 0;
    const Statistics own = next;
    next = statistics(row + step);
    const uint4* staged = stages + stage * Row::kStageVectors + threadIdx.x;
    if (p.num_stages == kMaxNormStages) {
      WaitCopiesAllBut<kMaxNormStages - 1>();
    } else {
      WaitCopiesAllBut<0>();
    }

    // Sums of g n, with g = d_y weight and n = (x - mean) rstd, and of g.
    float sums[kKind == NormKind::kLayer ? 2 : 1] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (idx(i) < num_vectors) {
        const Float8 d_y = Unpack8(staged[i * Row::kNumThreads]);
        const Float8 x = Unpack8(staged[i * Row::kNumThreads + kTensorVectors]);
        const Float8 w = weight(i);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float g = d_y.v[j] * w.v[j];
          sums[0] += g * (x.v[j] - own.mean);
          if constexpr (kKind == NormKind::kLayer) sums[1] += g;
        }
      }
    }
    RowSums<Row>(sums, scratch[parity]);
    const float mean_gn = sums[0] * inverse_hidden * own.rstd;
    float mean_g = 0.0f;
    if constexpr (kKind == NormKind::kLayer) mean_g = sums[1] * inverse_hidden;

#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (idx(i) < num_vectors) {
        const Float8 d_y = Unpack8(staged[i * Row::kNumThreads]);
        const Float8 x = Unpack8(staged[i * Row::kNumThreads + kTensorVectors]);
        const Float8 w = weight(i);
        Float8 d_residual{};
        if (p.d_residual != nullptr) {
          d_residual =
              Unpack8(staged[i * Row::kNumThreads + 2 * kTensorVectors]);
        }
        Float8 d_x;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float n = (x.v[j] - own.mean) * own.rstd;
          const float g = d_y.v[j] * w.v[j];
          d_weight[i].v[j] += d_y.v[j] * n;
          if constexpr (kKind == NormKind::kLayer) d_bias[i].v[j] += d_y.v[j];
          d_x.v[j] = own.rstd * (g - mean_g - n * mean_gn) + d_residual.v[j];
        }
        const uint4 packed = Pack8(d_x);
        Store16Streaming(
            static_cast<uint4*>(p.d_x) + row * p.num_vectors + idx(i), packed);
        largest = LargerPair(largest, packed);
      }
    }
    prefetch(row + p.num_stages * step, stage);
    stage = stage + 1 == p.num_stages ? 0 : stage + 1;
    parity ^= 1;
  }

  WaitCopiesAllBut<0>();
  if (p.amax != nullptr) RaiseAmax<Row::kNumThreads>(p.amax, largest);
  const int64_t hidden = 8 * int64_t{p.num_vectors};
  auto* shared = reinterpret_cast<float*>(stages);
  StorePartials<Row>(d_weight, p.num_vectors, shared,
                     p.partials + blockIdx.x * hidden);
  if constexpr (kKind == NormKind::kLayer) {
    StorePartials<Row>(d_bias, p.num_vectors, shared,
                       p.partials + (gridDim.x + blockIdx.x) * hidden);
  }
}

// No device we know has more; bounds the workspace.
inline constexpr int64_t kMaxMultiprocessors = 192;

template <typename Row>
int64_t NormBackwardBlocks(int64_t num_tokens, int64_t num_multiprocessors) {
  return std::min((num_tokens + Row::kRows - 1) / Row::kRows,
                  std::min(num_multiprocessors, kMaxMultiprocessors) *
                      Row::kBlocksPerMultiprocessor);
}

// The limits of a launch besides the device: the rows of the workspace, and the
// choice of stages.
struct NormBackwardBounds {
  int64_t num_blocks;
  int64_t num_stages;
};

template <NormKind kKind, NormWeight kWeight, typename Row>
absl::Status LaunchNormBackwardRow(NormBackward p,
                                   const NormBackwardOutputs& outputs,
                                   const NormBackwardBounds& bounds,
                                   cudaStream_t stream) {
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  // Each block also has its scratch and what the system reserves.
  constexpr int kOtherSharedBytes = 2048;
  p.num_stages =
      std::clamp((limits.shared_bytes_per_block - kOtherSharedBytes) /
                     Row::kBlocksPerMultiprocessor / Row::kStageBytes,
                 1, static_cast<int>(bounds.num_stages));
  const auto kernel = NormBackwardKernel<kKind, kWeight, Row>;
  RETURN_IF_ERROR(AllowSharedBytes(reinterpret_cast<const void*>(kernel),
                                   p.num_stages * Row::kStageBytes));
  const int64_t num_blocks = std::min(
      bounds.num_blocks,
      NormBackwardBlocks<Row>(p.num_tokens, limits.num_multiprocessors));
  kernel<<<static_cast<unsigned>(num_blocks), Row::kNumThreads,
           p.num_stages * Row::kStageBytes, stream>>>(p);
  RETURN_IF_ERROR(
      CudaStatus(cudaGetLastError(), "launch the backward pass of a norm"));
  return LaunchNormColumnSums(p, num_blocks, outputs, stream);
}

// The first choice for rows of up to kMaxBackwardVectors, and what it may need
// of partial sums; other choices make do with as much.
inline constexpr int kMaxBackwardVectors = 2048;
struct FirstBackwardChoice {
  int threads;
  int64_t max_blocks;
};

template <NormKind kKind>
FirstBackwardChoice FirstBackward(int64_t row_class, int64_t num_tokens) {
  auto of = [&]<typename Shape>(Shape) {
    return FirstBackwardChoice{Shape::kThreadsPerRow,
                               NormBackwardBlocks<BackwardRow<Shape>>(
                                   num_tokens, kMaxMultiprocessors)};
  };
  // LayerNorm has no registers for four vectors, twice their gradients, and the
  // weights.
  using UpTo1024 = std::conditional_t<kKind == NormKind::kLayer,
                                      RowShape<128, 1>, RowShape<32, 4>>;
  switch (row_class) {
    case 8:
      return of(RowShape<8, 1>());
    case 32:
      return of(RowShape<32, 1>());
    case 64:
      return of(RowShape<32, 2>());
    case 128:
      return of(UpTo1024());
    case 256:
      return of(RowShape<256, 1>());
    case 512:
      return of(RowShape<256, 2>());
    case 1024:
      return of(RowShape<512, 2>());
    default:
      return of(RowShape<512, 4>());
  }
}

template <NormKind kKind, NormWeight kWeight = NormWeight::kBf16>
absl::Status LaunchNormBackward(const NormBackward& p,
                                const NormBackwardOutputs& outputs,
                                cudaStream_t stream) {
  using Way =
      NormWay<absl::Status (*)(NormBackward, const NormBackwardOutputs&,
                               const NormBackwardBounds&, cudaStream_t)>;
#define WAY(threads, vectors)                                           \
  {                                                                     \
    threads *vectors, threads,                                          \
        &LaunchNormBackwardRow<kKind, kWeight,                          \
                               BackwardRow<RowShape<threads, vectors>>> \
  }
  static constexpr Way kWays[] = {
      WAY(8, 1),                               // 64 elements
      WAY(32, 1),                              // 256
      WAY(32, 2),  WAY(64, 1),                 // 512
      WAY(32, 4),  WAY(64, 2),  WAY(128, 1),   // 1024
      WAY(64, 4),  WAY(128, 2), WAY(256, 1),   // 2048
      WAY(128, 4), WAY(256, 2), WAY(512, 1),   // 4096
      WAY(256, 4), WAY(512, 2), WAY(1024, 1),  // 8192
      WAY(512, 4),                             // 16384
  };
#undef WAY
  if (p.num_tokens == 0) return LaunchNormColumnSums(p, 0, outputs, stream);
  if (p.num_vectors > kMaxBackwardVectors) {
    return LaunchNormBackwardLong<kKind, kWeight>(p, outputs, stream);
  }
  const int64_t row_class = NormRowClass(p.num_vectors);
  const FirstBackwardChoice first =
      FirstBackward<kKind>(row_class, p.num_tokens);
  const int64_t num_bytes = p.num_tokens * p.num_vectors * 64;
  const TuningValues choice = TunedChoice(
      TunedKernel::kNormBackward,
      {kKind == NormKind::kLayer, row_class, IsCachedClass(num_bytes)},
      {first.threads, kMaxNormStages});
  return FindNormWay(kWays, p.num_vectors, choice[0])
      .launch(p, outputs, {first.max_blocks, choice[1]}, stream);
}

template <NormKind kKind>
int64_t NormBackwardWorkspaceBytes(int64_t num_tokens, int64_t hidden) {
  const int64_t num_vectors = hidden / 8;
  const int64_t num_rows =
      num_vectors > kMaxBackwardVectors
          ? kLongNormPartials
          : FirstBackward<kKind>(NormRowClass(num_vectors), num_tokens)
                .max_blocks;
  return (kKind == NormKind::kLayer ? 2 : 1) * num_rows * hidden *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_NORM_NORM_BF16_BACKWARD_CUH_
