// Tiles of plain attention: 256 threads in 16 rows of 16, each with a square of
// a product of tiles. Thread (y, x) has rows kSide y ... of it, and every
// sixteenth column from x on, so that a half warp reads sixteen neighbouring
// columns of a row at once, and sixteen rows at a stride that hits every bank.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_PLAIN_TILE_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_PLAIN_TILE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention/attention.h"
#include "kernels/cuda/elements.cuh"

namespace millrace::plain {

inline constexpr int kLanes = 16;  // In either direction.
static_assert(kLanes * kLanes == kNumThreads);

// The limits of one instantiation: heads up to kHeadDim_, tiles of kTile_
// tokens. The largest needs 87 KiB of shared memory, which every GPU from 8.0
// on has.
template <typename T, int kHeadDim_, int kTile_>
struct AttentionTiling {
  using Element = T;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kTile = kTile_;
  static constexpr int kSide = kTile / kLanes;  // Rows of a thread.
  // Columns of a thread's heads.
  static constexpr int kColumns = kHeadDim / kLanes;
  // Row stride of a tile of heads.
  static constexpr int kStride = kHeadDim + 4;
  // Row stride of a tile of weights.
  static constexpr int kWeightStride = kTile + 4;
  static constexpr int kHeadsFloats = kTile * kStride;
  static constexpr int kWeightFloats = kTile * kWeightStride;
};

// Calls body.operator()<Tiling>() with the smallest that holds head_dim. The
// forward pass keeps two tiles of heads in shared memory, the backward pass
// four.
template <bool kIsForward, typename Body>
void WithAttentionTiling(ElementType type, int64_t head_dim, const Body& body) {
  WithElements(type, [&]<typename T>() {
    if (head_dim <= 32) {
      body.template operator()<AttentionTiling<T, 32, 64>>();
    } else if (head_dim <= 64) {
      body.template operator()<AttentionTiling<T, 64, 64>>();
    } else if (head_dim <= 128) {
      body.template operator()<AttentionTiling<T, 128, kIsForward ? 64 : 32>>();
    } else {
      body.template operator()<AttentionTiling<T, 256, kIsForward ? 32 : 16>>();
    }
  });
}

__device__ __forceinline__ int RowLane() { return threadIdx.x / kLanes; }
__device__ __forceinline__ int ColumnLane() { return threadIdx.x % kLanes; }

// Over the sixteen threads of a row of the block.
__device__ __forceinline__ float RowMax(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
  }
  return x;
}
__device__ __forceinline__ float RowSum(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(~0u, x, offset);
  }
  return x;
}

// tile[r, d] = heads[r stride + d] for the `count` rows that exist and d below
// head_dim, else zero.
template <typename Tiling>
__device__ __forceinline__ void LoadHeads(float* tile,
                                          const typename Tiling::Element* heads,
                                          int64_t stride, int64_t count,
                                          int64_t head_dim) {
  for (int i = threadIdx.x; i < Tiling::kTile * Tiling::kHeadDim;
       i += kNumThreads) {
    const int row = i / Tiling::kHeadDim;
    const int d = i % Tiling::kHeadDim;
    const bool exists = row < count && d < head_dim;
    tile[row * Tiling::kStride + d] =
        exists ? ToFloat(heads[row * stride + d]) : 0.0f;
  }
}

// products[i][j] = row kSide y + i of `rows` . row x + 16 j of `columns`.
template <typename Tiling>
__device__ __forceinline__ void MultiplyHeads(
    float (&products)[Tiling::kSide][Tiling::kSide], const float* rows,
    const float* columns) {
  constexpr int kSide = Tiling::kSide;
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
#pragma unroll
    for (int j = 0; j < kSide; ++j) products[i][j] = 0.0f;
  }
#pragma unroll 4
  for (int d = 0; d < Tiling::kHeadDim; d += 4) {
    float4 a[kSide], b[kSide];
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      a[i] = *reinterpret_cast<const float4*>(
          rows + (RowLane() * kSide + i) * Tiling::kStride + d);
      b[i] = *reinterpret_cast<const float4*>(
          columns + (ColumnLane() + kLanes * i) * Tiling::kStride + d);
    }
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        products[i][j] += a[i].x * b[j].x + a[i].y * b[j].y + a[i].z * b[j].z +
                          a[i].w * b[j].w;
      }
    }
  }
}

// A thread's share of a tile of weights, to where all threads read it.
template <typename Tiling>
__device__ __forceinline__ void StoreWeights(
    float* tile, const float (&weights)[Tiling::kSide][Tiling::kSide]) {
#pragma unroll
  for (int i = 0; i < Tiling::kSide; ++i) {
#pragma unroll
    for (int j = 0; j < Tiling::kSide; ++j) {
      tile[(RowLane() * Tiling::kSide + i) * Tiling::kWeightStride +
           ColumnLane() + kLanes * j] = weights[i][j];
    }
  }
}

// sums[i][j] += row kSide y + i of `weights` . column x + 16 j of `heads`.
template <typename Tiling>
__device__ __forceinline__ void AddWeighted(
    float (&sums)[Tiling::kSide][Tiling::kColumns], const float* weights,
    const float* heads) {
#pragma unroll 2
  for (int token = 0; token < Tiling::kTile; token += 4) {
    float4 w[Tiling::kSide];
#pragma unroll
    for (int i = 0; i < Tiling::kSide; ++i) {
      w[i] = *reinterpret_cast<const float4*>(
          weights + (RowLane() * Tiling::kSide + i) * Tiling::kWeightStride +
          token);
    }
#pragma unroll
    for (int j = 0; j < Tiling::kColumns; ++j) {
      const float* column =
          heads + token * Tiling::kStride + ColumnLane() + kLanes * j;
      const float x = column[0];
      const float y = column[Tiling::kStride];
      const float z = column[2 * Tiling::kStride];
      const float w_row = column[3 * Tiling::kStride];
#pragma unroll
      for (int i = 0; i < Tiling::kSide; ++i) {
        sums[i][j] += w[i].x * x + w[i].y * y + w[i].z * z + w[i].w * w_row;
      }
    }
  }
}

// heads[r stride + d] = sums, for the rows and columns that exist.
template <typename Tiling>
__device__ __forceinline__ void StoreHeads(
    typename Tiling::Element* heads, int64_t stride, int64_t count,
    int64_t head_dim, const float (&sums)[Tiling::kSide][Tiling::kColumns]) {
#pragma unroll
  for (int i = 0; i < Tiling::kSide; ++i) {
    const int row = RowLane() * Tiling::kSide + i;
    if (row >= count) continue;
#pragma unroll
    for (int j = 0; j < Tiling::kColumns; ++j) {
      const int d = ColumnLane() + kLanes * j;
      if (d >= head_dim) continue;
      heads[row * stride + d] = FromFloat<typename Tiling::Element>(sums[i][j]);
    }
  }
}

// One head of one sequence, and where its tokens' rows begin in packed tensors.
struct HeadPlace {
  int64_t first_token;  // First token of the sequence.
  int64_t head;
  int64_t kv_head;
  int64_t qkv_stride;  // From token to token.
  int64_t q, k, v;     // Offsets of the sequence's first rows in qkv.
  int64_t o_stride;
  int64_t o;     // The same in o.
  int64_t stat;  // The same in lse.
};
__device__ __forceinline__ HeadPlace PlaceOf(const AttentionShape& shape,
                                             int64_t sequence, int64_t head) {
  HeadPlace place;
  place.first_token = sequence * shape.sequence_length;
  place.head = head;
  place.kv_head = head / (shape.num_heads / shape.num_kv_heads);
  place.qkv_stride =
      (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
  place.q = place.first_token * place.qkv_stride + head * shape.head_dim;
  place.k = place.first_token * place.qkv_stride +
            (shape.num_heads + place.kv_head) * shape.head_dim;
  place.v = place.k + shape.num_kv_heads * shape.head_dim;
  place.o_stride = shape.num_heads * shape.head_dim;
  place.o = place.first_token * place.o_stride + head * shape.head_dim;
  place.stat =
      head * shape.num_sequences * shape.sequence_length + place.first_token;
  return place;
}

// The first position that the query at `position` sees; none if there is no
// such query.
__device__ __forceinline__ int FirstSeen(const AttentionShape& shape,
                                         const int32_t* starts_of_sequence,
                                         int64_t position) {
  constexpr int kNone = 0x7FFFFFFF;
  if (position >= shape.sequence_length) return kNone;
  const int start =
      max(0, min(starts_of_sequence[position], static_cast<int>(position)));
  if (shape.window == 0 || shape.window > position) return start;
  return max(start, static_cast<int>(position - shape.window) + 1);
}

// The score under the softcap; 0 leaves the score as it is.
__device__ __forceinline__ float Capped(float score, float softcap) {
  return softcap > 0.0f ? softcap * tanhf(score / softcap) : score;
}
// Its derivative, from the capped score.
__device__ __forceinline__ float CapSlope(float capped, float softcap) {
  if (softcap == 0.0f) return 1.0f;
  const float share = capped / softcap;
  return 1.0f - share * share;
}

// In every thread alike: whether any query of the tile from `query` on sees a
// key of the tile from `key` on, which is no later one. A barrier.
template <typename Tiling>
__device__ __forceinline__ bool SeesAny(const AttentionShape& shape,
                                        const int32_t* starts_of_sequence,
                                        int64_t query, int64_t key) {
  const bool sees = threadIdx.x < Tiling::kTile &&
                    FirstSeen(shape, starts_of_sequence, query + threadIdx.x) <
                        key + Tiling::kTile;
  return __syncthreads_or(sees) != 0;
}

// A block of a grid: one tile of one head (or key-value head) of one sequence.
struct AttentionBlock {
  int64_t tile, sequence, head;
};
__device__ __forceinline__ AttentionBlock BlockOf(const AttentionShape& shape,
                                                  int64_t num_heads) {
  const int64_t rest = blockIdx.x / num_heads;
  return {.tile = rest / shape.num_sequences,
          .sequence = rest % shape.num_sequences,
          .head = blockIdx.x % num_heads};
}
template <typename Tiling>
__host__ __device__ __forceinline__ int64_t
NumTiles(const AttentionShape& shape) {
  return (shape.sequence_length + Tiling::kTile - 1) / Tiling::kTile;
}

// InvalidArgument unless there can be such a shape, and grids for it.
inline absl::Status CheckAttention(const char* kernel,
                                   const AttentionShape& shape) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  if (shape.num_sequences >= 0 && shape.sequence_length >= 1 &&
      shape.sequence_length < kLimit && shape.num_kv_heads >= 1 &&
      shape.num_heads >= 1 && shape.num_heads < kLimit &&
      shape.num_heads % shape.num_kv_heads == 0 && shape.head_dim >= 1 &&
      shape.head_dim <= kMaxAttentionHeadDim && shape.window >= 0 &&
      shape.softcap >= 0 &&
      shape.num_sequences < kLimit / shape.num_heads / shape.sequence_length) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      kernel, " got ", shape.num_sequences, " sequences of ",
      shape.sequence_length, " tokens with ", shape.num_heads, " query and ",
      shape.num_kv_heads, " key-value heads of head_dim ", shape.head_dim,
      ", a window of ", shape.window, " and a softcap of ", shape.softcap,
      "; needs a multiple of heads, a head_dim in [1, ", kMaxAttentionHeadDim,
      "], a window and a softcap of 0 or more and less than 2^31 rows of "
      "heads"));
}

}  // namespace millrace::plain

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_PLAIN_TILE_CUH_
