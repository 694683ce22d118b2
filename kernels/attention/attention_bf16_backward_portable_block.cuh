// A block of the portable attention backward: its tiles, and its warps'
// products of them.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_PORTABLE_BLOCK_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_PORTABLE_BLOCK_CUH_

#include <cstdint>

#include "kernels/attention/attention_bf16_backward_portable.cuh"
#include "kernels/attention/attention_bf16_portable.cuh"
#include "kernels/cuda/mma.cuh"

namespace millrace::portable {

using namespace gpu;  // NOLINT: its primitives read as part of the language.

// kColumnWarps warps own kKeyTiles x 16 keys together. Each has kWarpColumns
// columns of the gradients of their keys and values, and computes the scores of
// kScoreColumns of the queries of a step. If that is one warp, probabilities
// and score gradients stay in registers as operands of these gradients; else
// the warps exchange them through shared memory.
//
// A warp computes kGradientRows x kGradientColumns of a step's query gradient,
// for which it needs the score gradients of all warps. With two stages and no
// exchange, that happens one step late, so that a step has one block barrier.
//
// Reads of shared memory limit the speed. Two key tiles a warp halve the reads
// of queries and are 20 % faster for head dim 64 and 7 % for 128 (measured on
// one H200).
template <int kHeadDim_, int kBlockM_, int kKeyTiles_, int kKeyWarps_,
          int kColumnWarps_, int kQueryWarps_, int kStages_>
struct BackwardConfig {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kBlockM = kBlockM_;
  static constexpr int kKeyTiles = kKeyTiles_;
  static constexpr int kKeyWarps = kKeyWarps_;
  static constexpr int kStages = kStages_;  // For queries and d_o.
  static constexpr bool kExchange = kColumnWarps_ > 1;
  static constexpr bool kLate = kStages == 2 && !kExchange;
  static constexpr int kNumWarps = kKeyWarps * kColumnWarps_;
  static constexpr int kNumThreads = kNumWarps * kWarpSize;
  static constexpr int kWarpKeys = 16 * kKeyTiles;
  static constexpr int kBlockN = kWarpKeys * kKeyWarps;
  static constexpr int kWarpColumns = kHeadDim / kColumnWarps_;
  static constexpr int kScoreColumns = kBlockM / kColumnWarps_;
  static constexpr int kGradientRows = kBlockM / kQueryWarps_;
  static constexpr int kGradientColumns = kHeadDim * kQueryWarps_ / kNumWarps;
  static constexpr int kGradientPerWarp =
      kGradientRows / 16 * (kGradientColumns / 8);
  static_assert(kGradientRows % 16 == 0 && kGradientColumns % 16 == 0);
  static_assert(kScoreColumns % 16 == 0 && kWarpColumns % 16 == 0);
  static_assert(kRowBlock % kBlockM == 0);
  static constexpr int kKeyBytes = kBlockN * kHeadDim * 2;
  static constexpr int kQueryBytes = kBlockM * kHeadDim * 2;
  static constexpr int kScoreBytes = kBlockM * kBlockN * 2;
  static constexpr int kRowBytes = kBlockM * 4;
  // Two of the gradient's if it is late, or one and one of probabilities.
  static constexpr int kScoreTiles = kLate || kExchange ? 2 : 1;
  static constexpr int kSharedBytes = 2 * kKeyBytes +
                                      kScoreTiles * kScoreBytes +
                                      2 * kStages * (kQueryBytes + kRowBytes);

  __device__ static int GradientRow(int warp) {
    return warp / (kNumWarps / kQueryWarps_) * kGradientRows;
  }
  __device__ static int GradientColumn(int warp) {
    return warp % (kNumWarps / kQueryWarps_) * kGradientColumns;
  }
};

struct BackwardParams {
  Bf16Heads d_k, d_v, q, k, v, d_o;
  BackwardRows rows;
  Sequences sequences;
  Reach reach;
  WorkOrder order;
  int num_kv_heads, heads_per_kv;
  bool sum_query_gradient;
  float scale, scale_log2;
  Softcap cap;  // With kCapped.
};

// Zeroes the probabilities of what is hidden: of a lane's keys first_key and
// first_key + 8, the queries from first_query on.
template <int kColumns>
__device__ __forceinline__ void Mask(float (&p)[kColumns / 8][4], int first_key,
                                     int first_query, const Reach& reach,
                                     int length) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = first_key + 8 * half;
    const int begin = key - reach.above - first_query;
    const int end = key < length ? key + reach.below + 1 - first_query : 0;
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      const int column = i / 2 * 8 + i % 2;
      float& x = p[i / 2][2 * half + i % 2];
      if (column < begin || column >= end) x = 0.0f;
    }
  }
}

// Adds the share of this block's keys in the query gradient, d_s^T k, to
// `block` in global memory. `d_s` is [keys, queries].
template <typename C>
__device__ __forceinline__ void AddQueryGradient(uint32_t d_s, uint32_t keys,
                                                 float* block) {
  using Tile = SwizzledTile<C::kHeadDim>;
  using ScoreTile = SwizzledTile<C::kBlockM>;
  constexpr int kRowTiles = C::kGradientRows / 16;
  const int warp = threadIdx.x / kWarpSize;
  const uint32_t d_s_lane = ScoreTile::LaneAddress(d_s, 0);
  const uint32_t k_lane = Tile::LaneAddress(keys, 0);
  const int row = C::GradientRow(warp);
  const int column = C::GradientColumn(warp);
  float d_q[kRowTiles][C::kGradientColumns / 8][4] = {};
#pragma unroll
  for (int n = 0; n < C::kBlockN / 16; ++n) {
    Fragment a[kRowTiles];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      a[r] = TransposedLeft(
          LoadMatrixTransposed(ScoreTile::Step(d_s_lane, n, row / 16 + r)));
    }
#pragma unroll
    for (int c = 0; c < C::kGradientColumns / 16; ++c) {
      const Fragment b =
          LoadMatrixTransposed(Tile::Step(k_lane, n, column / 16 + c));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        MultiplyAddColumns(d_q[r][2 * c], d_q[r][2 * c + 1], a[r], b);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int j = 0; j < C::kGradientColumns / 8; ++j) {
      AddGradient(GradientAt<C::kGradientPerWarp>(
                      block, warp, r * (C::kGradientColumns / 8) + j),
                  d_q[r][j]);
    }
  }
}

// scores += keys queries^T, own keys by own queries.
template <typename C>
__device__ __forceinline__ void MultiplyScores(
    float (&s)[C::kKeyTiles][C::kScoreColumns / 8][4], uint32_t key_lane,
    uint32_t query_lane) {
  using Tile = SwizzledTile<C::kHeadDim>;
#pragma unroll
  for (int c = 0; c < C::kHeadDim / 16; ++c) {
    Fragment a[C::kKeyTiles];
#pragma unroll
    for (int r = 0; r < C::kKeyTiles; ++r) {
      a[r] = LoadMatrix(Tile::Step(key_lane, r, c));
    }
#pragma unroll
    for (int m = 0; m < C::kScoreColumns / 16; ++m) {
      const Fragment b = LoadMatrix(Tile::Step(query_lane, m, c));
#pragma unroll
      for (int r = 0; r < C::kKeyTiles; ++r) {
        MultiplyAddRows(s[r][2 * m], s[r][2 * m + 1], a[r], b);
      }
    }
  }
}

// gradient += scores queries, own keys by own columns from `column` on;
// `scores(r, m)` is the fragment of key tile r and query tile m.
template <typename C, typename Scores>
__device__ __forceinline__ void MultiplyGradient(
    float (&gradient)[C::kKeyTiles][C::kWarpColumns / 8][4],
    const Scores& scores, uint32_t query_lane, int column) {
  using Tile = SwizzledTile<C::kHeadDim>;
#pragma unroll
  for (int m = 0; m < C::kBlockM / 16; ++m) {
    Fragment a[C::kKeyTiles];
#pragma unroll
    for (int r = 0; r < C::kKeyTiles; ++r) a[r] = scores(r, m);
#pragma unroll
    for (int c = 0; c < C::kWarpColumns / 16; ++c) {
      const Fragment b =
          LoadMatrixTransposed(Tile::Step(query_lane, m, column / 16 + c));
#pragma unroll
      for (int r = 0; r < C::kKeyTiles; ++r) {
        MultiplyAddColumns(gradient[r][2 * c], gradient[r][2 * c + 1], a[r], b);
      }
    }
  }
}

template <typename C>
using PackedScores = Fragment[C::kKeyTiles][C::kScoreColumns / 16];

template <typename C>
__device__ __forceinline__ void PackScores(
    PackedScores<C>& packed,
    const float (&s)[C::kKeyTiles][C::kScoreColumns / 8][4]) {
#pragma unroll
  for (int r = 0; r < C::kKeyTiles; ++r) {
#pragma unroll
    for (int m = 0; m < C::kScoreColumns / 16; ++m) {
      packed[r][m] = PackLeft(s[r][2 * m], s[r][2 * m + 1]);
    }
  }
}

// To rows from `row` and columns from `column` on of a [keys, queries] tile.
template <typename C>
__device__ __forceinline__ void StoreScores(uint8_t* tile,
                                            const PackedScores<C>& packed,
                                            int row, int column) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int r = 0; r < C::kKeyTiles; ++r) {
#pragma unroll
    for (int i = 0; i < C::kScoreColumns / 4; ++i) {
      const uint32_t offset = SwizzledTile<C::kBlockM>::Offset(
          row + 16 * r + lane / 4 + i % 2 * 8, column / 8 + i / 2);
      *reinterpret_cast<uint32_t*>(tile + offset + lane % 4 * 4) =
          packed[r][i / 4].r[i % 4];
    }
  }
}

}  // namespace millrace::portable

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_PORTABLE_BLOCK_CUH_
