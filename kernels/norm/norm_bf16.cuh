// The common part of RMSNorm and LayerNorm of bf16 rows: how a row lies over
// threads, and the sums over it. rmsnorm_bf16.h and layernorm_bf16.h have the
// contracts.

#ifndef MILLRACE_KERNELS_NORM_NORM_BF16_CUH_
#define MILLRACE_KERNELS_NORM_NORM_BF16_CUH_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/tuning/tuned_choice.h"

namespace millrace::gpu {

// LayerNorm subtracts the mean and adds a bias; the rest is the same.
enum class NormKind { kRms, kLayer };

inline constexpr int64_t kMaxNormHidden = 65536;

// How the weights that scale a row are stored. Rows are scaled by one more than
// those of kOnePlusFp32.
enum class NormWeight { kBf16, kFp32, kOnePlusFp32 };

// Elements [8 idx, 8 idx + 8) of them.
template <NormWeight kWeight>
__device__ __forceinline__ Float8 LoadWeights(const void* weight, int idx) {
  if constexpr (kWeight == NormWeight::kBf16) {
    return Unpack8(__ldg(static_cast<const uint4*>(weight) + idx));
  } else {
    const float4* from = static_cast<const float4*>(weight) + 2 * idx;
    const float4 low = __ldg(from);
    const float4 high = __ldg(from + 1);
    Float8 weights = {
        {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    if constexpr (kWeight == NormWeight::kOnePlusFp32) {
#pragma unroll
      for (float& w : weights.v) w += 1.0f;
    }
    return weights;
  }
}

// A row of up to 8 kThreads kVectors elements: vector i of 16 bytes of thread l
// is vector i * kThreads + l of the row. Short rows share a block.
template <int kThreads, int kVectors>
struct RowShape {
  static constexpr int kThreadsPerRow = kThreads;
  static constexpr int kVectorsPerThread = kVectors;
  static constexpr int kNumThreads = kThreads <= kWarpSize ? 256 : kThreads;
  static constexpr int kRows = kNumThreads / kThreads;
};

// One compiled way to lie a row over threads, and what launches it.
template <typename Launch>
struct NormWay {
  int row_vectors;  // At most.
  int threads;
  Launch launch;
};

// Chooses among `ways`, which are sorted by row_vectors and then by threads.
// Takes the shortest rows that hold `num_vectors`, and among these the one with
// most threads up to `threads`, or else with the fewest.
template <typename Way, size_t kCount>
const Way& FindNormWay(const Way (&ways)[kCount], int64_t num_vectors,
                       int64_t threads) {
  size_t i = 0;
  while (i + 1 < kCount && ways[i].row_vectors < num_vectors) ++i;
  while (i + 1 < kCount && ways[i + 1].row_vectors == ways[i].row_vectors &&
         ways[i + 1].threads <= threads) {
    ++i;
  }
  return ways[i];
}

// The class of rows of `num_vectors`, a power of two and not 16.
inline int64_t NormRowClass(int64_t num_vectors) {
  const int64_t size = SizeClass(num_vectors);
  if (size <= 8) return 8;
  return size == 16 ? 32 : size;
}

// The sums of each x[k] over the kThreadsPerRow threads of a row, in all of
// them, always in the same order. `scratch` holds kCount floats for each warp
// of the block and may be used again after the next block barrier.
template <typename Row, int kCount>
__device__ __forceinline__ void RowSums(float (&x)[kCount], float* scratch) {
  constexpr int kLanes =
      Row::kThreadsPerRow < kWarpSize ? Row::kThreadsPerRow : kWarpSize;
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      x[k] += __shfl_xor_sync(~0u, x[k], offset);
    }
  }
  if constexpr (Row::kThreadsPerRow > kWarpSize) {
    constexpr int kWarps = Row::kThreadsPerRow / kWarpSize;
    if (threadIdx.x % kWarpSize == 0) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        scratch[k * kWarps + threadIdx.x / kWarpSize] = x[k];
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      x[k] = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        x[k] += scratch[k * kWarps + warp];
      }
    }
  }
}

template <typename Row>
__device__ __forceinline__ float RowSum(float x, float* scratch) {
  float sums[1] = {x};
  RowSums<Row>(sums, scratch);
  return sums[0];
}

// `name` begins the message.
inline absl::Status CheckNormBf16(
    absl::string_view name, int64_t num_tokens, int64_t hidden,
    std::initializer_list<const void*> addresses) {
  constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();
  if (num_tokens < 0 || num_tokens > kMaxRows || hidden < 8 ||
      hidden > kMaxNormHidden || hidden % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " takes up to ", kMaxRows, " rows of 8 to ", kMaxNormHidden,
        " elements, a multiple of 8; got ", num_tokens, " rows of ", hidden));
  }
  for (const void* address : addresses) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name,
                       " takes addresses that are multiples of 16 bytes; "
                       "one of them is not"));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_NORM_NORM_BF16_CUH_
