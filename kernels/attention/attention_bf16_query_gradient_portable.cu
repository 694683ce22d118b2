#include <cmath>

#include "base/status_macros.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_bf16_backward_portable.cuh"
#include "kernels/attention/attention_bf16_portable.cuh"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

using namespace gpu;       // NOLINT: its primitives read as part of the
using namespace portable;  // NOLINT: language.

// A warp owns kRowTiles x 16 queries; a block walks over blocks of kBlockN keys
// and values.
template <int kHeadDim_, int kRowTiles_, int kBlockN_>
struct Config {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kBlockN = kBlockN_;
  static constexpr int kNumWarps = 4;
  static constexpr int kNumThreads = kNumWarps * kWarpSize;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kBlockM = kWarpRows * kNumWarps;
  static constexpr int kQueryBytes = kBlockM * kHeadDim * 2;
  static constexpr int kKeyBytes = kBlockN * kHeadDim * 2;
  static constexpr int kSharedBytes = 2 * kQueryBytes + 2 * kKeyBytes;
};

struct Params {
  Bf16Heads d_q, q, k, v, d_o;
  BackwardRows rows;
  Sequences sequences;
  Reach reach;
  WorkOrder order;
  int heads_per_kv;
  float scale, scale_log2;
  Softcap cap;  // With kCapped.
};

// acc += tile[own rows] other^T, both of kHeadDim columns.
template <typename C>
__device__ __forceinline__ void MultiplyTiles(
    float (&acc)[C::kRowTiles][C::kBlockN / 8][4], uint32_t left_lane,
    uint32_t right_lane) {
  using Tile = SwizzledTile<C::kHeadDim>;
#pragma unroll
  for (int c = 0; c < C::kHeadDim / 16; ++c) {
    Fragment a[C::kRowTiles];
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) {
      a[r] = LoadMatrix(Tile::Step(left_lane, r, c));
    }
#pragma unroll
    for (int n = 0; n < C::kBlockN / 16; ++n) {
      const Fragment b = LoadMatrix(Tile::Step(right_lane, n, c));
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) {
        MultiplyAddRows(acc[r][2 * n], acc[r][2 * n + 1], a[r], b);
      }
    }
  }
}

// One block for kBlockM queries of one head: computes the scores and their
// gradients once more, and sums the query gradient in registers, always in the
// same order. Limited by shared-memory reads of the operands.
template <typename C, bool kCapped>
__global__ void __launch_bounds__(C::kNumThreads, 2)
    AttentionQueryGradientPortableKernel(const __grid_constant__ Params p) {
  using Tile = SwizzledTile<C::kHeadDim>;
  using Copy = TileCopy<C::kHeadDim, C::kNumThreads>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t shared_q = SharedAddressOf(shared);
  const uint32_t shared_d_o = shared_q + C::kQueryBytes;
  const uint32_t shared_k = shared_d_o + C::kQueryBytes;
  const uint32_t shared_v = shared_k + C::kKeyBytes;

  const WorkItem item = WorkAt(p.order, blockIdx.x);
  const int head = item.head % p.sequences.num_heads;
  const Place place = PlaceOf(p.sequences, item.head / p.sequences.num_heads);
  const int first_query = item.block * C::kBlockM;
  if (first_query >= place.length) return;

  const int end_key =
      min(place.length, first_query + C::kBlockM + p.reach.above);
  const int end_block = (end_key + C::kBlockN - 1) / C::kBlockN;
  int block = max(0, first_query - p.reach.below) / C::kBlockN;
  const int kv_head = head / p.heads_per_kv;
  auto load_queries = [&](uint32_t tile, const Bf16Heads& from) {
    Copy::template Load<C::kBlockM>(tile,
                                    RowsOf(from, p.sequences, place, head) +
                                        first_query * from.token_stride,
                                    from.token_stride,
                                    place.length - first_query);
  };
  auto load_keys = [&](uint32_t tile, const Bf16Heads& from, int key_block) {
    const int first = key_block * C::kBlockN;
    Copy::template Load<C::kBlockN>(
        tile,
        RowsOf(from, p.sequences, place, kv_head) + first * from.token_stride,
        from.token_stride, place.length - first);
    CommitCopies();
  };
  load_queries(shared_q, p.q);
  load_keys(shared_k, p.k, block);
  load_queries(shared_d_o, p.d_o);
  load_keys(shared_v, p.v, block);

  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int warp_row = first_query + warp * C::kWarpRows;
  const uint32_t q_lane = Tile::LaneAddress(shared_q, warp * C::kWarpRows);
  const uint32_t d_o_lane = Tile::LaneAddress(shared_d_o, warp * C::kWarpRows);
  const uint32_t k_lane = Tile::LaneAddress(shared_k, 0);
  const uint32_t v_lane = Tile::LaneAddress(shared_v, 0);
  // The statistics of a lane's rows. Rows past the end may lie past the padding
  // too.
  float lse[C::kRowTiles][2], delta[C::kRowTiles][2];
  const int64_t first_row = FirstRow(p.rows, p.sequences, place, head);
#pragma unroll
  for (int r = 0; r < C::kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + 16 * r + lane / 4 + 8 * half;
      const bool is_row = row < place.length;
      lse[r][half] = is_row ? p.rows.lse_log2[first_row + row] : INFINITY;
      delta[r][half] = is_row ? p.rows.delta[first_row + row] : 0.0f;
    }
  }
  float d_q[C::kRowTiles][C::kHeadDim / 8][4] = {};

#pragma unroll 1
  for (; block < end_block; ++block) {
    const int first_key = block * C::kBlockN;
    WaitCopiesAllBut<1>();
    __syncthreads();  // Keys are here.
    float s[C::kRowTiles][C::kBlockN / 8][4] = {};
    MultiplyTiles<C>(s, q_lane, k_lane);
    WaitCopiesAllBut<0>();
    __syncthreads();  // Values are here.
    float d_p[C::kRowTiles][C::kBlockN / 8][4] = {};
    MultiplyTiles<C>(d_p, d_o_lane, v_lane);
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + 16 * r + lane / 4 + 8 * half;
        const int begin = row - p.reach.below - first_key - lane % 4 * 2;
        const int end = min(place.length, row + p.reach.above + 1) - first_key -
                        lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < C::kBlockN / 4; ++i) {
          const int column = i / 2 * 8 + i % 2;
          float& x = s[r][i / 2][2 * half + i % 2];
          float d_x = d_p[r][i / 2][2 * half + i % 2] - delta[r][half];
          if constexpr (kCapped) {
            const float share = FastTanh(p.cap.in * x);
            d_x *= 1.0f - share * share;
            x = p.cap.out * share;
          }
          const float probability =
              FastExp2(fmaf(x, p.scale_log2, -lse[r][half]));
          x = column < begin || column >= end ? 0.0f : probability * d_x;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < C::kBlockN / 16; ++n) {
      Fragment a[C::kRowTiles];
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) {
        a[r] = PackLeft(s[r][2 * n], s[r][2 * n + 1]);
      }
#pragma unroll
      for (int c = 0; c < C::kHeadDim / 16; ++c) {
        const Fragment b = LoadMatrixTransposed(Tile::Step(k_lane, n, c));
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r) {
          MultiplyAddColumns(d_q[r][2 * c], d_q[r][2 * c + 1], a[r], b);
        }
      }
    }
    __syncthreads();  // All are done with keys and values.
    if (block + 1 < end_block) {
      load_keys(shared_k, p.k, block + 1);
      load_keys(shared_v, p.v, block + 1);
    }
  }

  // The memory of the warp's queries carries its results out.
  __nv_bfloat16* to = RowsOf(p.d_q, p.sequences, place, head);
  const float scale[2] = {p.scale, p.scale};
#pragma unroll
  for (int r = 0; r < C::kRowTiles; ++r) {
    const int row = warp_row + 16 * r;
    WriteRows<C::kHeadDim>(
        shared + (warp * C::kWarpRows + 16 * r) * Tile::kRowBytes, d_q[r],
        scale, to + row * p.d_q.token_stride, p.d_q.token_stride,
        place.length - row);
  }
}

template <typename C>
absl::Status Launch(const AttentionBackwardBf16Args& args,
                    const BackwardRows& rows, cudaStream_t stream) {
  const AttentionBf16Shape& shape = args.shape;
  Params p = {.d_q = args.d_q,
              .q = args.q,
              .k = args.k,
              .v = args.v,
              .d_o = args.d_o,
              .rows = rows};
  p.sequences = SequencesOf(shape);
  p.reach = ReachOf(shape);
  p.heads_per_kv = static_cast<int>(shape.num_heads / shape.num_kv_heads);
  const int64_t num_heads = shape.num_heads * shape.num_sequences;
  p.order = OrderWork(
      num_heads,
      static_cast<int>((shape.sequence_length + C::kBlockM - 1) / C::kBlockM),
      shape.causal,
      shape.sequence_length * shape.head_dim * 4 / p.heads_per_kv);
  p.scale = static_cast<float>(1.0 / std::sqrt(C::kHeadDim));
  p.scale_log2 = static_cast<float>(M_LOG2E / std::sqrt(C::kHeadDim));
  ASSIGN_OR_RETURN(const unsigned grid, GridOf(p.order, num_heads));
  if (shape.softcap > 0) p.cap = SoftcapOf(shape);
  const auto kernel = shape.softcap > 0
                          ? AttentionQueryGradientPortableKernel<C, true>
                          : AttentionQueryGradientPortableKernel<C, false>;
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), C::kSharedBytes));
  kernel<<<grid, C::kNumThreads, C::kSharedBytes, stream>>>(p);
  return CudaStatus(cudaGetLastError(),
                    "launch the deterministic query gradient of attention");
}

}  // namespace

namespace portable {

absl::Status LaunchQueryGradient(const AttentionBackwardBf16Args& args,
                                 const BackwardRows& rows,
                                 cudaStream_t stream) {
  switch (args.shape.head_dim) {
    case 64:
      return Launch<Config<64, 2, 64>>(args, rows, stream);
    case 96:
      return Launch<Config<96, 2, 32>>(args, rows, stream);
    case 128:
      return Launch<Config<128, 2, 32>>(args, rows, stream);
    default:
      return Launch<Config<256, 1, 32>>(args, rows, stream);
  }
}

}  // namespace portable
}  // namespace millrace
