// The common part of the portable kernels of bf16 attention: where sequences
// lie, which keys a query sees, and the copies of tiles to and from shared
// memory.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_PORTABLE_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_PORTABLE_CUH_

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_work_order.cuh"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mma.cuh"

namespace millrace::portable {

inline constexpr int kWarpSize = 32;

// Whether the current device and the limits of the portable kernels allow the
// shape, which has passed CheckAttentionBf16Shape().
inline absl::Status CheckPortableAttention(const AttentionBf16Shape& shape) {
  RETURN_IF_ERROR(CheckPortableDevice("bf16 attention"));
  // Sums of two positions are counted in 32 bits.
  constexpr int64_t kLongest = int64_t{1} << 30;
  if (shape.sequence_length > kLongest) {
    return absl::InvalidArgumentError(
        absl::StrCat("portable bf16 attention takes sequences of at most 2^30 "
                     "tokens; got ",
                     shape.sequence_length));
  }
  return absl::OkStatus();
}

// Query i sees the keys [i - below, i + above] of its sequence.
struct Reach {
  int below, above;
};

inline Reach ReachOf(const AttentionBf16Shape& shape) {
  const int all = static_cast<int>(shape.sequence_length);
  const int window = shape.window == 0
                         ? all
                         : static_cast<int>(std::min<int64_t>(
                               shape.window - 1, shape.sequence_length));
  return {.below = window, .above = shape.causal ? 0 : window};
}

// A softcap of scores, stated in products of queries and keys: these become
// out tanh(in x).
struct Softcap {
  float in, out;
};

inline Softcap SoftcapOf(const AttentionBf16Shape& shape) {
  const double root = std::sqrt(static_cast<double>(shape.head_dim));
  return {.in = static_cast<float>(1 / (root * shape.softcap)),
          .out = static_cast<float>(root * shape.softcap)};
}

// tanh(x), off by some 1e-7.
__device__ __forceinline__ float FastTanh(float x) {
  constexpr float kTwiceLog2E = 2.88539008177792681f;
  return 1.0f - __fdividef(2.0f, 1.0f + gpu::FastExp2(x * kTwiceLog2E));
}

__device__ __forceinline__ float Capped(float product, const Softcap& cap) {
  return cap.out * FastTanh(cap.in * product);
}

// The sequences of a shape, on the device.
struct Sequences {
  const int32_t* offsets;  // Null: all have `length` tokens.
  int length;
  int num_heads;
  int64_t total_tokens;  // In packed documents.
};

inline Sequences SequencesOf(const AttentionBf16Shape& shape) {
  return {.offsets = shape.document_offsets,
          .length = static_cast<int>(shape.sequence_length),
          .num_heads = static_cast<int>(shape.num_heads),
          .total_tokens = shape.total_tokens};
}

// One sequence.
struct Place {
  int index;
  int first_token;  // In packed documents, else zero.
  int length;
};

__device__ __forceinline__ Place PlaceOf(const Sequences& all, int index) {
  if (all.offsets == nullptr) return {index, 0, all.length};
  const int first = all.offsets[index];
  return {index, first, all.offsets[index + 1] - first};
}

// The first row of one head of one sequence.
__device__ __forceinline__ __nv_bfloat16* RowsOf(const Bf16Heads& heads,
                                                 const Sequences& all,
                                                 const Place& place, int head) {
  const int64_t sequence = all.offsets == nullptr
                               ? place.index * heads.sequence_stride
                               : place.first_token * heads.token_stride;
  return static_cast<__nv_bfloat16*>(heads.data) + sequence +
         head * heads.head_stride;
}

// Index into LSE of the first query of one head of one sequence.
__device__ __forceinline__ int64_t FirstLse(const Sequences& all,
                                            const Place& place, int head) {
  if (all.offsets != nullptr) {
    return head * all.total_tokens + place.first_token;
  }
  return (static_cast<int64_t>(place.index) * all.num_heads + head) *
         all.length;
}

// Blocks of work as a grid; InvalidArgument if there are too many.
inline absl::StatusOr<unsigned> GridOf(const WorkOrder& order,
                                       int64_t num_heads) {
  const int64_t num_items = order.num_blocks * num_heads;
  if (num_items > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "portable bf16 attention takes at most 2^31 - 1 blocks; got ",
        num_items));
  }
  return static_cast<unsigned>(num_items);
}

// How the threads of a block share a tile of kHeadDim columns: kLanes of them
// take neighbouring 16-byte chunks of a row, so that reads fill whole sectors.
template <int kHeadDim, int kNumThreads>
struct TileCopy {
  using Tile = gpu::SwizzledTile<kHeadDim>;
  static constexpr int kLanes =
      kHeadDim == 96 ? 4 : (kHeadDim >= 128 ? 16 : kHeadDim / 8);
  static constexpr int kRowsPerPass = kNumThreads / kLanes;
  static constexpr int kColumnPasses = Tile::kChunksPerRow / kLanes;

  // Rows [0, kRows) into `tile`, zeros from `num_valid` on.
  template <int kRows>
  __device__ static __forceinline__ void Load(uint32_t tile,
                                              const __nv_bfloat16* rows,
                                              int64_t stride, int num_valid) {
    static_assert(kRows % kRowsPerPass == 0 || kRows < kRowsPerPass);
    const int first = threadIdx.x / kLanes;
    const int chunk = threadIdx.x % kLanes;
    if (kRows < kRowsPerPass && first >= kRows) return;
#pragma unroll
    for (int row = first; row < first + kRows; row += kRowsPerPass) {
      const __nv_bfloat16* from = rows + row * stride + chunk * 8;
#pragma unroll
      for (int pass = 0; pass < kColumnPasses; ++pass) {
        gpu::CopyAsync16OrZero(tile + Tile::Offset(row, chunk + pass * kLanes),
                               from + pass * kLanes * 8, row < num_valid);
      }
    }
  }
};

// Writes 16 rows of accumulators, times `scale` (of rows l / 4 and l / 4 + 8 of
// this lane), as bf16 to the rows of `to` below `num_valid`, by way of 16 rows
// of shared memory that belong to the warp.
template <int kHeadDim>
__device__ __forceinline__ void WriteRows(uint8_t* shared,
                                          const float (&x)[kHeadDim / 8][4],
                                          const float (&scale)[2],
                                          __nv_bfloat16* to, int64_t stride,
                                          int num_valid) {
  using Tile = gpu::SwizzledTile<kHeadDim>;
  const int lane = threadIdx.x % kWarpSize;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kHeadDim / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<uint32_t*>(
          shared + Tile::Offset(lane / 4 + 8 * half, j) + lane % 4 * 4) =
          gpu::PackBf16(x[j][2 * half] * scale[half],
                        x[j][2 * half + 1] * scale[half]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16 * Tile::kChunksPerRow / kWarpSize; ++i) {
    const int row = (i * kWarpSize + lane) / Tile::kChunksPerRow;
    const int chunk = (i * kWarpSize + lane) % Tile::kChunksPerRow;
    if (row < num_valid) {
      *reinterpret_cast<uint4*>(to + row * stride + chunk * 8) =
          *reinterpret_cast<const uint4*>(shared + Tile::Offset(row, chunk));
    }
  }
}

}  // namespace millrace::portable

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_PORTABLE_CUH_
