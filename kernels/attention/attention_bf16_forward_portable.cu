#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_bf16_paths.h"
#include "kernels/attention/attention_bf16_portable.cuh"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/status.h"

// Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work
// Partitioning", 2023, with two changes: the output is rescaled only when a
// maximum has grown much, and blocks are handed out longest first.

namespace millrace {
namespace {

using namespace gpu;       // NOLINT: its primitives read as part of the
using namespace portable;  // NOLINT: language.

// A warp owns kRowTiles x 16 queries; a block walks over blocks of kBlockN
// keys. Two blocks fit a multiprocessor, so that one computes while the other
// waits. With two stages of keys and values a step has one block barrier
// instead of two; measured on one H200, that is 2 % better.
template <int kHeadDim_, int kRowTiles_, int kStages_>
struct Config {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kStages = kStages_;  // For keys and values.
  static constexpr int kBlockN = 64;
  static constexpr int kNumWarps = 4;
  static constexpr int kNumThreads = kNumWarps * kWarpSize;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kBlockM = kWarpRows * kNumWarps;
  static constexpr int kQueryBytes = kBlockM * kHeadDim * 2;
  static constexpr int kKeyBytes = kBlockN * kHeadDim * 2;
  static constexpr int kSharedBytes = kQueryBytes + 2 * kStages * kKeyBytes;
  // Where registers allow it: saves reading them for every block of keys.
  static constexpr bool kKeepQueries = kHeadDim == 64;
};

struct Params {
  Bf16Heads q, k, v, o;
  float* lse;
  Sequences sequences;
  Reach reach;
  WorkOrder order;
  int heads_per_kv;
  float scale_log2;
  Softcap cap;  // With kCapped.
};

// Running softmax of the rows a lane shares with its quad. The base of the
// exponentials follows the maximum only when the maximum has grown by more than
// kSlack powers of two: exponentials then stay below 2^kSlack, which fp32 sums
// take without loss, and most blocks rescale nothing. Measured on one H200: 1
// to 5 % faster than without slack. As the largest probability is then not
// exactly one before it is rounded to bf16, the output's error is 4 % above
// that of FlashAttention-2 (2.1e-3 against 2.0e-3 for normal inputs, causal);
// without slack the two are equal.
struct RowState {
  float base[2] = {-INFINITY, -INFINITY};  // Times scale, to base 2.
  float sum[2] = {0.0f, 0.0f};             // This lane's columns only.
};
constexpr float kSlack = 8.0f;

// Removes what queries from `first_row` on must not see among the keys from
// `first_key` on.
template <int kBlockN>
__device__ __forceinline__ void Mask(float (&s)[kBlockN / 8][4], int first_row,
                                     int first_key, const Reach& reach,
                                     int length) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane / 4 + 8 * half;
    const int begin = row - reach.below - first_key - lane % 4 * 2;
    const int end =
        min(length, row + reach.above + 1) - first_key - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kBlockN / 4; ++i) {
      const int column = i / 2 * 8 + i % 2;
      float& x = s[i / 2][2 * half + i % 2];
      if (column < begin || column >= end) x = -INFINITY;
    }
  }
}

// Scores to exponentials; rescales `o` where the base moves.
template <int kBlockN, int kHeadDim>
__device__ __forceinline__ void Softmax(float (&s)[kBlockN / 8][4],
                                        RowState& rows,
                                        float (&o)[kHeadDim / 8][4],
                                        float scale_log2) {
  float maximum[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int j = 0; j < kBlockN / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) maximum[i / 2] = fmaxf(maximum[i / 2], s[j][i]);
  }
  bool moves = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    maximum[r] = fmaxf(maximum[r], __shfl_xor_sync(~0u, maximum[r], 1));
    maximum[r] = fmaxf(maximum[r], __shfl_xor_sync(~0u, maximum[r], 2));
    maximum[r] *= scale_log2;
    moves |= maximum[r] > rows.base[r] + kSlack;
  }
  if (__any_sync(~0u, moves)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float base = fmaxf(rows.base[r], maximum[r]);
      // A row that has seen nothing keeps nothing.
      const float factor =
          base == -INFINITY ? 1.0f : FastExp2(rows.base[r] - base);
      rows.base[r] = base;
      rows.sum[r] *= factor;
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; ++j) {
        o[j][2 * r] *= factor;
        o[j][2 * r + 1] *= factor;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float base = rows.base[r] == -INFINITY ? 0.0f : rows.base[r];
#pragma unroll
    for (int j = 0; j < kBlockN / 8; ++j) {
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        s[j][i] = FastExp2(fmaf(s[j][i], scale_log2, -base));
        rows.sum[r] += s[j][i];
      }
    }
  }
}

// One block for kBlockM queries of one head. Limited by the tensor cores and by
// shared-memory reads of their operands.
template <typename C, bool kCapped>
__global__ void __launch_bounds__(C::kNumThreads, 2)
    AttentionForwardPortableKernel(const __grid_constant__ Params p) {
  using Tile = SwizzledTile<C::kHeadDim>;
  using Copy = TileCopy<C::kHeadDim, C::kNumThreads>;
  constexpr int kColumnTiles = C::kHeadDim / 16;
  constexpr int kKeyTiles = C::kBlockN / 16;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t shared_q = SharedAddressOf(shared);
  const uint32_t shared_k = shared_q + C::kQueryBytes;
  const uint32_t shared_v = shared_k + C::kStages * C::kKeyBytes;

  const WorkItem item = WorkAt(p.order, blockIdx.x);
  const int head = item.head % p.sequences.num_heads;
  const Place place = PlaceOf(p.sequences, item.head / p.sequences.num_heads);
  const int first_query = item.block * C::kBlockM;
  if (first_query >= place.length) return;

  const int end_key =
      min(place.length, first_query + C::kBlockM + p.reach.above);
  const int first_block = max(0, first_query - p.reach.below) / C::kBlockN;
  int block = (end_key - 1) / C::kBlockN;
  const int kv_head = head / p.heads_per_kv;
  const __nv_bfloat16* k = RowsOf(p.k, p.sequences, place, kv_head);
  const __nv_bfloat16* v = RowsOf(p.v, p.sequences, place, kv_head);
  auto load = [&](uint32_t tile, const __nv_bfloat16* from, int64_t stride,
                  int key_block) {
    const int first = key_block * C::kBlockN;
    Copy::template Load<C::kBlockN>(tile, from + first * stride, stride,
                                    place.length - first);
    CommitCopies();
  };
  Copy::template Load<C::kBlockM>(
      shared_q,
      RowsOf(p.q, p.sequences, place, head) + first_query * p.q.token_stride,
      p.q.token_stride, place.length - first_query);
  load(shared_k, k, p.k.token_stride, block);
  if (C::kStages == 2) load(shared_v, v, p.v.token_stride, block);

  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int warp_row = first_query + warp * C::kWarpRows;
  const uint32_t q_lane = Tile::LaneAddress(shared_q, warp * C::kWarpRows);
  const uint32_t k_lane = Tile::LaneAddress(shared_k, 0);
  const uint32_t v_lane = Tile::LaneAddress(shared_v, 0);
  Fragment queries[C::kKeepQueries ? C::kRowTiles : 1]
                  [C::kKeepQueries ? kColumnTiles : 1];
  RowState rows[C::kRowTiles];
  float o[C::kRowTiles][C::kHeadDim / 8][4] = {};
  if constexpr (C::kKeepQueries) {
    WaitCopiesAllBut<0>();
    __syncthreads();
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        queries[r][c] = LoadMatrix(Tile::Step(q_lane, r, c));
      }
    }
  }

  // Every query of the block sees the keys [full_begin, full_end).
  const int full_begin = first_query + C::kBlockM - 1 - p.reach.below;
  const int full_end = min(place.length, first_query + p.reach.above + 1);
  int stage = 0;
  // One block of keys.
  auto step = [&] {
    const uint32_t offset = stage * C::kKeyBytes;
    WaitCopiesAllBut<0>();
    __syncthreads();  // Keys are here, and all are done with the last values.
    if constexpr (C::kStages == 2) {
      stage ^= 1;
      if (block > first_block) {
        const uint32_t other = stage * C::kKeyBytes;
        load(shared_k + other, k, p.k.token_stride, block - 1);
        load(shared_v + other, v, p.v.token_stride, block - 1);
      }
    } else {
      load(shared_v, v, p.v.token_stride, block);
    }
    float s[C::kRowTiles][C::kBlockN / 8][4] = {};
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      Fragment a[C::kRowTiles];
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) {
        if constexpr (C::kKeepQueries) {
          a[r] = queries[r][c];
        } else {
          a[r] = LoadMatrix(Tile::Step(q_lane, r, c));
        }
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        const Fragment b = LoadMatrix(Tile::Step(k_lane + offset, n, c));
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r) {
          MultiplyAddRows(s[r][2 * n], s[r][2 * n + 1], a[r], b);
        }
      }
    }
    if constexpr (C::kStages == 1) {
      WaitCopiesAllBut<0>();
      __syncthreads();  // Values are here, and all are done with the keys.
      if (block > first_block) load(shared_k, k, p.k.token_stride, block - 1);
    }
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) {
      if constexpr (kCapped) {
#pragma unroll
        for (int j = 0; j < C::kBlockN / 8; ++j) {
#pragma unroll
          for (float& product : s[r][j]) product = Capped(product, p.cap);
        }
      }
      if (block * C::kBlockN < full_begin ||
          (block + 1) * C::kBlockN > full_end) {
        Mask<C::kBlockN>(s[r], warp_row + 16 * r, block * C::kBlockN, p.reach,
                         place.length);
      }
      Softmax<C::kBlockN, C::kHeadDim>(s[r], rows[r], o[r], p.scale_log2);
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      Fragment a[C::kRowTiles];
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) {
        a[r] = PackLeft(s[r][2 * n], s[r][2 * n + 1]);
      }
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        const Fragment b =
            LoadMatrixTransposed(Tile::Step(v_lane + offset, n, c));
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r) {
          MultiplyAddColumns(o[r][2 * c], o[r][2 * c + 1], a[r], b);
        }
      }
    }
  };
#pragma unroll 1
  for (; block >= first_block; --block) step();

  // The memory of the warp's queries carries its results out.
  __nv_bfloat16* to = RowsOf(p.o, p.sequences, place, head);
  float* lse = p.lse + FirstLse(p.sequences, place, head);
#pragma unroll
  for (int r = 0; r < C::kRowTiles; ++r) {
    const int row = warp_row + 16 * r;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows[r].sum[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse[half] = 1.0f / sum;
      const int query = row + lane / 4 + 8 * half;
      if (lane % 4 == 0 && query < place.length) {
        lse[query] = rows[r].base[half] * static_cast<float>(M_LN2) + logf(sum);
      }
    }
    WriteRows<C::kHeadDim>(
        shared + (warp * C::kWarpRows + 16 * r) * Tile::kRowBytes, o[r],
        inverse, to + row * p.o.token_stride, p.o.token_stride,
        place.length - row);
  }
}

template <typename C>
absl::Status Launch(const AttentionForwardBf16Args& args, cudaStream_t stream) {
  const AttentionBf16Shape& shape = args.shape;
  Params p = {.q = args.q, .k = args.k, .v = args.v, .o = args.o};
  p.lse = args.lse;
  p.sequences = SequencesOf(shape);
  p.reach = ReachOf(shape);
  p.heads_per_kv = static_cast<int>(shape.num_heads / shape.num_kv_heads);
  const int64_t num_heads = shape.num_heads * shape.num_sequences;
  p.order = OrderWork(
      num_heads,
      static_cast<int>((shape.sequence_length + C::kBlockM - 1) / C::kBlockM),
      shape.causal,
      shape.sequence_length * shape.head_dim * 4 / p.heads_per_kv);
  p.scale_log2 = static_cast<float>(M_LOG2E / std::sqrt(C::kHeadDim));
  ASSIGN_OR_RETURN(const unsigned grid, GridOf(p.order, num_heads));
  if (shape.softcap > 0) p.cap = SoftcapOf(shape);
  const auto kernel = shape.softcap > 0
                          ? AttentionForwardPortableKernel<C, true>
                          : AttentionForwardPortableKernel<C, false>;
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), C::kSharedBytes));
  kernel<<<grid, C::kNumThreads, C::kSharedBytes, stream>>>(p);
  return CudaStatus(cudaGetLastError(), "launch AttentionForwardBf16Portable");
}

}  // namespace

absl::Status LaunchAttentionForwardBf16Portable(
    const AttentionForwardBf16Args& args, cudaStream_t stream,
    int max_shared_bytes) {
  RETURN_IF_ERROR(CheckPortableAttention(args.shape));
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  switch (args.shape.head_dim) {
    case 64:
      return Launch<Config<64, 2, 2>>(args, stream);
    case 96:
      return Launch<Config<96, 2, 1>>(args, stream);
    case 128:
      // Two blocks of two stages a multiprocessor, or two blocks of one.
      return std::min(limits.shared_bytes_per_block, max_shared_bytes) >=
                     2 * Config<128, 2, 2>::kSharedBytes
                 ? Launch<Config<128, 2, 2>>(args, stream)
                 : Launch<Config<128, 2, 1>>(args, stream);
    default:
      return Launch<Config<256, 1, 1>>(args, stream);
  }
}

}  // namespace millrace
