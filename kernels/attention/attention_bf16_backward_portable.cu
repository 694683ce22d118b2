#include "kernels/attention/attention_bf16_backward_portable.cuh"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_bf16_backward_portable_block.cuh"
#include "kernels/attention/attention_bf16_paths.h"
#include "kernels/attention/attention_bf16_portable.cuh"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/status.h"

// The loop of Dao, "FlashAttention-2", 2023: a block keeps keys and values and
// walks over the queries. Scores are computed transposed, keys by queries, so
// that probabilities and score gradients leave the tensor cores as operands of
// the gradients of values and keys and never pass through shared memory; only
// the query gradient needs the score gradients of all warps.

namespace millrace {
namespace {

using namespace gpu;       // NOLINT: its primitives read as part of the
using namespace portable;  // NOLINT: language.

// One block for kBlockN keys of one key-value head. Limited by shared-memory
// reads of the operands.
template <typename C, bool kCapped>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    AttentionBackwardPortableKernel(const __grid_constant__ BackwardParams p) {
  using Tile = SwizzledTile<C::kHeadDim>;
  using ScoreTile = SwizzledTile<C::kBlockM>;
  using Copy = TileCopy<C::kHeadDim, C::kNumThreads>;
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* const d_s = shared + 2 * C::kKeyBytes;
  uint8_t* const probabilities = d_s + C::kScoreBytes;  // If exchanged.
  uint8_t* const queries = d_s + C::kScoreTiles * C::kScoreBytes;
  uint8_t* const statistics = queries + 2 * C::kStages * C::kQueryBytes;
  const uint32_t shared_k = SharedAddressOf(shared);
  const uint32_t shared_v = shared_k + C::kKeyBytes;
  const uint32_t shared_d_s = SharedAddressOf(d_s);
  const uint32_t shared_q = SharedAddressOf(queries);
  const uint32_t shared_d_o = shared_q + C::kStages * C::kQueryBytes;
  float* const shared_lse = reinterpret_cast<float*>(statistics);
  float* const shared_delta = shared_lse + C::kStages * C::kBlockM;

  const WorkItem item = WorkAt(p.order, blockIdx.x);
  const int kv_head = item.head % p.num_kv_heads;
  const Place place = PlaceOf(p.sequences, item.head / p.num_kv_heads);
  const int first_key = item.block * C::kBlockN;
  if (first_key >= place.length) return;

  // The steps: blocks of queries that see the keys, of every head that shares
  // them.
  const int first_query =
      max(0, first_key - p.reach.above) / C::kBlockM * C::kBlockM;
  const int end_query = min(
      place.length, min(first_key + C::kBlockN, place.length) + p.reach.below);
  const int end_head = (kv_head + 1) * p.heads_per_kv;
  struct Step {
    int head, query;
  };
  auto next = [&](Step step) -> Step {
    step.query += C::kBlockM;
    return step.query < end_query ? step : Step{step.head + 1, first_query};
  };
  auto row_of = [&](const Step& step) {
    return FirstRow(p.rows, p.sequences, place, step.head) + step.query;
  };
  auto load = [&](const Step& step, int stage) {
    Copy::template Load<C::kBlockM>(shared_q + stage * C::kQueryBytes,
                                    RowsOf(p.q, p.sequences, place, step.head) +
                                        step.query * p.q.token_stride,
                                    p.q.token_stride,
                                    place.length - step.query);
    Copy::template Load<C::kBlockM>(
        shared_d_o + stage * C::kQueryBytes,
        RowsOf(p.d_o, p.sequences, place, step.head) +
            step.query * p.d_o.token_stride,
        p.d_o.token_stride, place.length - step.query);
    constexpr int kChunks = C::kRowBytes / 16;
    if (threadIdx.x < 2 * kChunks) {
      const bool is_delta = threadIdx.x >= kChunks;
      const int first = threadIdx.x % kChunks * 4;
      CopyAsync16OrZero(
          SharedAddressOf((is_delta ? shared_delta : shared_lse) +
                          stage * C::kBlockM + first),
          (is_delta ? p.rows.delta : p.rows.lse_log2) + row_of(step) + first,
          true);
    }
    CommitCopies();
  };
  auto load_keys = [&](uint32_t tile, const Bf16Heads& from) {
    Copy::template Load<C::kBlockN>(tile,
                                    RowsOf(from, p.sequences, place, kv_head) +
                                        first_key * from.token_stride,
                                    from.token_stride,
                                    place.length - first_key);
  };
  Step step = {kv_head * p.heads_per_kv, first_query};
  load_keys(shared_k, p.k);
  load_keys(shared_v, p.v);
  load(step, 0);

  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int key_row = warp % C::kKeyWarps * C::kWarpKeys;
  const int warp_key = first_key + key_row;
  const int column = warp / C::kKeyWarps * C::kWarpColumns;
  const int score_column = warp / C::kKeyWarps * C::kScoreColumns;
  const uint32_t k_lane = Tile::LaneAddress(shared_k, key_row);
  const uint32_t v_lane = Tile::LaneAddress(shared_v, key_row);
  float d_k[C::kKeyTiles][C::kWarpColumns / 8][4] = {};
  float d_v[C::kKeyTiles][C::kWarpColumns / 8][4] = {};
  float* late_gradient = nullptr;  // Where that of the last step goes.

#pragma unroll 1
  for (int stage = 0; step.head < end_head;
       stage = C::kStages == 2 ? stage ^ 1 : 0) {
    const Step next_step = next(step);
    float* const gradient = p.rows.d_q + row_of(step) * C::kHeadDim;
    WaitCopiesAllBut<0>();
    __syncthreads();  // Queries are here; all are done with the last step.
    if (C::kStages == 2 && next_step.head < end_head) {
      load(next_step, stage ^ 1);
    }
    if constexpr (C::kLate) {
      if (late_gradient != nullptr) {
        AddQueryGradient<C>(shared_d_s + (stage ^ 1) * C::kScoreBytes, shared_k,
                            late_gradient);
      }
      late_gradient = p.sum_query_gradient ? gradient : nullptr;
    }
    const uint32_t q_tile = shared_q + stage * C::kQueryBytes;
    const uint32_t d_o_tile = shared_d_o + stage * C::kQueryBytes;
    const uint32_t q_lane = Tile::LaneAddress(q_tile, 0);
    const uint32_t d_o_lane = Tile::LaneAddress(d_o_tile, 0);
    const int query = step.query + score_column;
    // Keys that no query of the step sees have nothing to add.
    const bool is_seen =
        warp_key < place.length &&
        warp_key <= step.query + C::kBlockM - 1 + p.reach.above &&
        warp_key + C::kWarpKeys - 1 >= step.query - p.reach.below;
    PackedScores<C> packed = {};
    if (is_seen) {
      const float* const lse =
          shared_lse + stage * C::kBlockM + score_column + lane % 4 * 2;
      const float* const delta = lse + C::kStages * C::kBlockM;
      float s[C::kKeyTiles][C::kScoreColumns / 8][4] = {};
      MultiplyScores<C>(s, k_lane, Tile::LaneAddress(q_tile, score_column));
#pragma unroll
      for (int j = 0; j < C::kScoreColumns / 8; ++j) {
        const float2 x = *reinterpret_cast<const float2*>(lse + 8 * j);
#pragma unroll
        for (int r = 0; r < C::kKeyTiles; ++r) {
          if constexpr (kCapped) {
#pragma unroll
            for (float& product : s[r][j]) product = Capped(product, p.cap);
          }
          s[r][j][0] = FastExp2(fmaf(s[r][j][0], p.scale_log2, -x.x));
          s[r][j][1] = FastExp2(fmaf(s[r][j][1], p.scale_log2, -x.y));
          s[r][j][2] = FastExp2(fmaf(s[r][j][2], p.scale_log2, -x.x));
          s[r][j][3] = FastExp2(fmaf(s[r][j][3], p.scale_log2, -x.y));
        }
      }
#pragma unroll
      for (int r = 0; r < C::kKeyTiles; ++r) {
        const int key = warp_key + 16 * r;
        if (key + 15 >= place.length || key + 15 > query + p.reach.above ||
            key < query + C::kScoreColumns - 1 - p.reach.below) {
          Mask<C::kScoreColumns>(s[r], key + lane / 4, query + lane % 4 * 2,
                                 p.reach, place.length);
        }
      }
      PackScores<C>(packed, s);
      if constexpr (C::kExchange) {
        StoreScores<C>(probabilities, packed, key_row, score_column);
      } else {
        MultiplyGradient<C>(
            d_v, [&](int r, int m) { return packed[r][m]; }, d_o_lane, 0);
      }

      // The softcap's derivative, from a probability and its row's log-sum-exp,
      // which together give the capped score back.
      auto slope = [&](float probability, float lse_log2) {
        const float share =
            (__log2f(probability) + lse_log2) / (p.cap.out * p.scale_log2);
        return probability > 0.0f ? 1.0f - share * share : 0.0f;
      };
      float d_p[C::kKeyTiles][C::kScoreColumns / 8][4] = {};
      MultiplyScores<C>(d_p, v_lane, Tile::LaneAddress(d_o_tile, score_column));
#pragma unroll
      for (int j = 0; j < C::kScoreColumns / 8; ++j) {
        const float2 x = *reinterpret_cast<const float2*>(delta + 8 * j);
#pragma unroll
        for (int r = 0; r < C::kKeyTiles; ++r) {
          if constexpr (kCapped) {
            const float2 sums = *reinterpret_cast<const float2*>(lse + 8 * j);
            d_p[r][j][0] = (d_p[r][j][0] - x.x) * slope(s[r][j][0], sums.x);
            d_p[r][j][1] = (d_p[r][j][1] - x.y) * slope(s[r][j][1], sums.y);
            d_p[r][j][2] = (d_p[r][j][2] - x.x) * slope(s[r][j][2], sums.x);
            d_p[r][j][3] = (d_p[r][j][3] - x.y) * slope(s[r][j][3], sums.y);
#pragma unroll
            for (int i = 0; i < 4; ++i) s[r][j][i] *= d_p[r][j][i];
            continue;
          }
          s[r][j][0] *= d_p[r][j][0] - x.x;
          s[r][j][1] *= d_p[r][j][1] - x.y;
          s[r][j][2] *= d_p[r][j][2] - x.x;
          s[r][j][3] *= d_p[r][j][3] - x.y;
        }
      }
      PackScores<C>(packed, s);
      if constexpr (!C::kExchange) {
        MultiplyGradient<C>(
            d_k, [&](int r, int m) { return packed[r][m]; }, q_lane, 0);
      }
    }
    if (C::kExchange || p.sum_query_gradient) {
      StoreScores<C>(d_s + (C::kLate ? stage * C::kScoreBytes : 0), packed,
                     key_row, score_column);
    }
    if constexpr (C::kExchange) {
      __syncthreads();  // Probabilities and score gradients are here.
      if (is_seen) {
        auto from = [&](const uint8_t* tile) {
          const uint32_t tile_lane =
              ScoreTile::LaneAddress(SharedAddressOf(tile), key_row);
          return [tile_lane](int r, int m) {
            return LoadMatrix(ScoreTile::Step(tile_lane, r, m));
          };
        };
        MultiplyGradient<C>(d_v, from(probabilities), d_o_lane, column);
        MultiplyGradient<C>(d_k, from(d_s), q_lane, column);
      }
    }
    if constexpr (C::kStages == 1) {
      __syncthreads();  // Score gradients are here; all are done with queries.
      if (next_step.head < end_head) load(next_step, 0);
    }
    if (!C::kLate && p.sum_query_gradient) {
      AddQueryGradient<C>(shared_d_s, shared_k, gradient);
    }
    step = next_step;
    if (C::kLate && step.head >= end_head && late_gradient != nullptr) {
      __syncthreads();
      AddQueryGradient<C>(shared_d_s + stage * C::kScoreBytes, shared_k,
                          late_gradient);
    }
  }

  // Nobody reads keys and values any more: their memory carries the results
  // out.
  __syncthreads();
  auto write = [&](const Bf16Heads& to, uint8_t* memory,
                   const float(&x)[C::kKeyTiles][C::kWarpColumns / 8][4],
                   float scale) {
    const float both[2] = {scale, scale};
#pragma unroll
    for (int r = 0; r < C::kKeyTiles; ++r) {
      const int key = warp_key + 16 * r;
      WriteRows<C::kWarpColumns>(
          memory + (warp * C::kKeyTiles + r) * 16 * C::kWarpColumns * 2, x[r],
          both,
          RowsOf(to, p.sequences, place, kv_head) + key * to.token_stride +
              column,
          to.token_stride, place.length - key);
    }
  };
  write(p.d_k, shared, d_k, p.scale);
  write(p.d_v, shared + C::kKeyBytes, d_v, 1.0f);
}

template <typename C>
absl::Status Launch(const AttentionBackwardBf16Args& args,
                    cudaStream_t stream) {
  const AttentionBf16Shape& shape = args.shape;
  BackwardParams p = {.d_k = args.d_k,
                      .d_v = args.d_v,
                      .q = args.q,
                      .k = args.k,
                      .v = args.v,
                      .d_o = args.d_o};
  p.rows = PlaceRows(shape, args.workspace);
  p.sequences = SequencesOf(shape);
  p.reach = ReachOf(shape);
  p.num_kv_heads = static_cast<int>(shape.num_kv_heads);
  p.heads_per_kv = static_cast<int>(shape.num_heads / shape.num_kv_heads);
  const int64_t num_kv_heads = shape.num_kv_heads * shape.num_sequences;
  p.order = OrderWork(
      num_kv_heads,
      static_cast<int>((shape.sequence_length + C::kBlockN - 1) / C::kBlockN),
      false, shape.sequence_length * shape.head_dim * 8 * p.heads_per_kv);
  p.sum_query_gradient = !args.deterministic;
  p.scale = static_cast<float>(1.0 / std::sqrt(C::kHeadDim));
  p.scale_log2 = static_cast<float>(M_LOG2E / std::sqrt(C::kHeadDim));
  ASSIGN_OR_RETURN(const unsigned grid, GridOf(p.order, num_kv_heads));

  const int64_t num_heads = shape.num_heads * shape.num_sequences;
  constexpr int kRowThreads = 256;
  constexpr int kRowsPerBlock = kRowThreads / RowLanes(C::kHeadDim);
  const WorkOrder row_order = {
      static_cast<int>((shape.sequence_length + kRowBlock - 1) / kRowBlock *
                       kRowBlock / kRowsPerBlock),
      1, false};
  ASSIGN_OR_RETURN(const unsigned row_grid, GridOf(row_order, num_heads));
  BackwardRowsKernel<C::kHeadDim><<<row_grid, kRowThreads, 0, stream>>>(
      args.o, args.d_o, args.lse, p.rows, p.sequences, row_order.num_blocks,
      p.sum_query_gradient);
  RETURN_IF_ERROR(
      CudaStatus(cudaGetLastError(), "launch the rows of attention backward"));

  if (shape.softcap > 0) p.cap = SoftcapOf(shape);
  const auto kernel = shape.softcap > 0
                          ? AttentionBackwardPortableKernel<C, true>
                          : AttentionBackwardPortableKernel<C, false>;
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), C::kSharedBytes));
  kernel<<<grid, C::kNumThreads, C::kSharedBytes, stream>>>(p);
  RETURN_IF_ERROR(
      CudaStatus(cudaGetLastError(), "launch AttentionBackwardBf16Portable"));
  if (args.deterministic) {
    return LaunchQueryGradient(args, p.rows, stream);
  }

  const WorkOrder round_order = {
      static_cast<int>((shape.sequence_length + C::kBlockM - 1) / C::kBlockM),
      1, false};
  ASSIGN_OR_RETURN(const unsigned round_grid, GridOf(round_order, num_heads));
  BackwardRoundKernel<C><<<round_grid, C::kNumThreads, 0, stream>>>(
      args.d_q, p.rows, p.sequences, round_order.num_blocks, p.scale);
  return CudaStatus(cudaGetLastError(),
                    "launch the query gradient of attention backward");
}

// The first tiles that fit; the last ones fit every device.
template <typename First, typename... Rest>
absl::Status LaunchLargest(const AttentionBackwardBf16Args& args,
                           int max_shared_bytes, cudaStream_t stream) {
  if constexpr (sizeof...(Rest) == 0) {
    static_assert(First::kSharedBytes <= kLeastSharedBytes);
  } else {
    if (First::kSharedBytes > max_shared_bytes) {
      return LaunchLargest<Rest...>(args, max_shared_bytes, stream);
    }
  }
  return Launch<First>(args, stream);
}

}  // namespace

int64_t AttentionBackwardBf16PortableWorkspaceBytes(
    const AttentionBf16Shape& shape) {
  return NumRows(shape) * (2 + shape.head_dim) *
         static_cast<int64_t>(sizeof(float));
}

absl::Status LaunchAttentionBackwardBf16Portable(
    const AttentionBackwardBf16Args& args, cudaStream_t stream,
    int max_shared_bytes) {
  RETURN_IF_ERROR(CheckPortableAttention(args.shape));
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  const int num_bytes =
      std::min(limits.shared_bytes_per_block, max_shared_bytes);
  switch (args.shape.head_dim) {
    case 64:
      return LaunchLargest<BackwardConfig<64, 32, 2, 4, 1, 1, 1>>(
          args, num_bytes, stream);
    case 96:
      return LaunchLargest<BackwardConfig<96, 64, 1, 8, 1, 4, 2>,
                           BackwardConfig<96, 64, 1, 4, 1, 2, 2>>(
          args, num_bytes, stream);
    case 128:
      return LaunchLargest<BackwardConfig<128, 64, 2, 4, 2, 2, 2>,
                           BackwardConfig<128, 64, 2, 2, 2, 2, 1>>(
          args, num_bytes, stream);
    default:
      return LaunchLargest<BackwardConfig<256, 64, 2, 2, 4, 2, 2>,
                           BackwardConfig<256, 64, 2, 2, 4, 2, 1>,
                           BackwardConfig<256, 32, 1, 2, 2, 1, 1>>(
          args, num_bytes, stream);
  }
}

}  // namespace millrace
