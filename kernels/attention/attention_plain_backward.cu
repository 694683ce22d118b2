#include <cmath>

#include "base/status_macros.h"
#include "kernels/attention/attention_plain.h"
#include "kernels/attention/attention_plain_tile.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"

namespace millrace {
namespace {

using plain::ColumnLane;
using plain::kLanes;
using plain::RowLane;

// A warp a token and head: delta = d_o . o. Limited by memory bandwidth.
template <typename T>
__global__ void __launch_bounds__(plain::kNumThreads)
    DeltaKernel(const __grid_constant__ PlainAttentionBackwardArgs args) {
  constexpr int kNumWarps = plain::kNumThreads / gpu::kWarpSize;
  const AttentionShape& shape = args.shape;
  const int64_t num_tokens = shape.num_sequences * shape.sequence_length;
  const int64_t row =
      int64_t{blockIdx.x} * kNumWarps + threadIdx.x / gpu::kWarpSize;
  if (row >= num_tokens * shape.num_heads) return;
  const T* o = static_cast<const T*>(args.o) + row * shape.head_dim;
  const T* d_o = static_cast<const T*>(args.d_o) + row * shape.head_dim;
  float sum = 0.0f;
  for (int64_t d = threadIdx.x % gpu::kWarpSize; d < shape.head_dim;
       d += gpu::kWarpSize) {
    sum += plain::ToFloat(o[d]) * plain::ToFloat(d_o[d]);
  }
  sum = gpu::WarpSum(sum);
  if (threadIdx.x % gpu::kWarpSize == 0) {
    args.delta[row % shape.num_heads * num_tokens + row / shape.num_heads] =
        sum;
  }
}

// Four tiles of heads and one of weights.
template <typename Tiling>
struct BackwardTiles {
  float *q, *k, *v, *d_o, *weights;

  static constexpr int kBytes =
      (4 * Tiling::kHeadsFloats + Tiling::kWeightFloats) * sizeof(float);

  __device__ explicit BackwardTiles(float4* shared)
      : q(reinterpret_cast<float*>(shared)),
        k(q + Tiling::kHeadsFloats),
        v(k + Tiling::kHeadsFloats),
        d_o(v + Tiling::kHeadsFloats),
        weights(d_o + Tiling::kHeadsFloats) {}
};

// The statistics of one query in the backward pass.
struct QueryStats {
  int first_seen;
  int64_t position;
  float lse;
  float delta;

  __device__ bool Sees(int64_t key_position) const {
    return key_position >= first_seen && key_position <= position;
  }
};
__device__ __forceinline__ QueryStats
StatsOf(const PlainAttentionBackwardArgs& args, const plain::HeadPlace& place,
        int64_t position) {
  const bool exists = position < args.shape.sequence_length;
  const int64_t i = place.stat + position;
  return {plain::FirstSeen(args.shape, args.document_starts + place.first_token,
                           position),
          position, exists ? args.lse[i] : 0.0f, exists ? args.delta[i] : 0.0f};
}

// A block takes a tile of keys of one key-value head, and walks over the query
// tiles that see it, of each head of the group. Limited by fp32 arithmetic.
template <typename Tiling>
__global__ void __launch_bounds__(plain::kNumThreads) KeyValueGradientKernel(
    const __grid_constant__ PlainAttentionBackwardArgs args) {
  using Element = typename Tiling::Element;
  constexpr int kSide = Tiling::kSide;
  extern __shared__ float4 shared[];
  const BackwardTiles<Tiling> tiles(shared);
  const AttentionShape& shape = args.shape;
  const plain::AttentionBlock block = plain::BlockOf(shape, shape.num_kv_heads);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const Element* const qkv = static_cast<const Element*>(args.qkv);
  const Element* const d_o = static_cast<const Element*>(args.d_o);
  const int64_t key = block.tile * Tiling::kTile;
  const int64_t num_keys = shape.sequence_length - key;
  const int64_t first_key = key + RowLane() * kSide;
  const float scale = 1.0f / sqrtf(static_cast<float>(shape.head_dim));

  const plain::HeadPlace first =
      plain::PlaceOf(shape, block.sequence, block.head * group);
  const int32_t* const starts = args.document_starts + first.first_token;
  plain::LoadHeads<Tiling>(tiles.k, qkv + first.k + key * first.qkv_stride,
                           first.qkv_stride, num_keys, shape.head_dim);
  plain::LoadHeads<Tiling>(tiles.v, qkv + first.v + key * first.qkv_stride,
                           first.qkv_stride, num_keys, shape.head_dim);
  float d_k[kSide][Tiling::kColumns] = {};
  float d_v[kSide][Tiling::kColumns] = {};
  for (int64_t head = block.head * group; head < (block.head + 1) * group;
       ++head) {
    const plain::HeadPlace place = plain::PlaceOf(shape, block.sequence, head);
    for (int64_t query = key; query < shape.sequence_length;
         query += Tiling::kTile) {
      if (!plain::SeesAny<Tiling>(shape, starts, query, key)) continue;
      const int64_t num_queries = shape.sequence_length - query;
      plain::LoadHeads<Tiling>(tiles.q,
                               qkv + place.q + query * place.qkv_stride,
                               place.qkv_stride, num_queries, shape.head_dim);
      plain::LoadHeads<Tiling>(tiles.d_o,
                               d_o + place.o + query * place.o_stride,
                               place.o_stride, num_queries, shape.head_dim);
      __syncthreads();
      // Rows are keys, columns queries.
      float p[kSide][kSide];
      float d_s[kSide][kSide];
      plain::MultiplyHeads<Tiling>(p, tiles.k, tiles.q);
      plain::MultiplyHeads<Tiling>(d_s, tiles.v, tiles.d_o);
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        const QueryStats stats =
            StatsOf(args, place, query + ColumnLane() + kLanes * j);
#pragma unroll
        for (int i = 0; i < kSide; ++i) {
          const bool sees = stats.Sees(first_key + i);
          const float score = plain::Capped(p[i][j] * scale, shape.softcap);
          const float slope = scale * plain::CapSlope(score, shape.softcap);
          p[i][j] = sees ? expf(score - stats.lse) : 0.0f;
          d_s[i][j] = sees ? p[i][j] * (d_s[i][j] - stats.delta) * slope : 0.0f;
        }
      }
      plain::StoreWeights<Tiling>(tiles.weights, p);
      __syncthreads();
      plain::AddWeighted<Tiling>(d_v, tiles.weights, tiles.d_o);
      __syncthreads();
      plain::StoreWeights<Tiling>(tiles.weights, d_s);
      __syncthreads();
      plain::AddWeighted<Tiling>(d_k, tiles.weights, tiles.q);
    }
  }
  Element* const d_qkv =
      static_cast<Element*>(args.d_qkv) + key * first.qkv_stride;
  plain::StoreHeads<Tiling>(d_qkv + first.k, first.qkv_stride, num_keys,
                            shape.head_dim, d_k);
  plain::StoreHeads<Tiling>(d_qkv + first.v, first.qkv_stride, num_keys,
                            shape.head_dim, d_v);
}

// A block takes a tile of queries of one head, and walks over the key tiles
// that it sees; late tiles first. Limited by fp32 arithmetic.
template <typename Tiling>
__global__ void __launch_bounds__(plain::kNumThreads) QueryGradientKernel(
    const __grid_constant__ PlainAttentionBackwardArgs args) {
  using Element = typename Tiling::Element;
  constexpr int kSide = Tiling::kSide;
  extern __shared__ float4 shared[];
  const BackwardTiles<Tiling> tiles(shared);
  const AttentionShape& shape = args.shape;
  const plain::AttentionBlock block = plain::BlockOf(shape, shape.num_heads);
  const plain::HeadPlace place =
      plain::PlaceOf(shape, block.sequence, block.head);
  const Element* const qkv = static_cast<const Element*>(args.qkv);
  const int32_t* const starts = args.document_starts + place.first_token;
  const int64_t query =
      (plain::NumTiles<Tiling>(shape) - 1 - block.tile) * Tiling::kTile;
  const int64_t num_queries = shape.sequence_length - query;
  const int64_t first_row = query + RowLane() * kSide;
  const float scale = 1.0f / sqrtf(static_cast<float>(shape.head_dim));

  plain::LoadHeads<Tiling>(tiles.q, qkv + place.q + query * place.qkv_stride,
                           place.qkv_stride, num_queries, shape.head_dim);
  plain::LoadHeads<Tiling>(
      tiles.d_o,
      static_cast<const Element*>(args.d_o) + place.o + query * place.o_stride,
      place.o_stride, num_queries, shape.head_dim);
  QueryStats stats[kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i)
    stats[i] = StatsOf(args, place, first_row + i);
  float d_q[kSide][Tiling::kColumns] = {};
  for (int64_t key = 0; key <= query; key += Tiling::kTile) {
    if (!plain::SeesAny<Tiling>(shape, starts, query, key)) continue;
    const int64_t num_keys = shape.sequence_length - key;
    plain::LoadHeads<Tiling>(tiles.k, qkv + place.k + key * place.qkv_stride,
                             place.qkv_stride, num_keys, shape.head_dim);
    plain::LoadHeads<Tiling>(tiles.v, qkv + place.v + key * place.qkv_stride,
                             place.qkv_stride, num_keys, shape.head_dim);
    __syncthreads();
    float scores[kSide][kSide];
    float d_s[kSide][kSide];
    plain::MultiplyHeads<Tiling>(scores, tiles.q, tiles.k);
    plain::MultiplyHeads<Tiling>(d_s, tiles.d_o, tiles.v);
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        const float score = plain::Capped(scores[i][j] * scale, shape.softcap);
        const float slope = scale * plain::CapSlope(score, shape.softcap);
        const float p = expf(score - stats[i].lse);
        d_s[i][j] = stats[i].Sees(key + ColumnLane() + kLanes * j)
                        ? p * (d_s[i][j] - stats[i].delta) * slope
                        : 0.0f;
      }
    }
    plain::StoreWeights<Tiling>(tiles.weights, d_s);
    __syncthreads();
    plain::AddWeighted<Tiling>(d_q, tiles.weights, tiles.k);
  }
  plain::StoreHeads<Tiling>(
      static_cast<Element*>(args.d_qkv) + place.q + query * place.qkv_stride,
      place.qkv_stride, num_queries, shape.head_dim, d_q);
}

template <typename Kernel>
absl::Status Launch(Kernel kernel, int64_t num_blocks, int shared_bytes,
                    const PlainAttentionBackwardArgs& args,
                    cudaStream_t stream) {
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), shared_bytes));
  kernel<<<static_cast<unsigned>(num_blocks), plain::kNumThreads, shared_bytes,
           stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch plain attention backward");
}

template <typename Tiling>
absl::Status LaunchAll(const PlainAttentionBackwardArgs& args,
                       cudaStream_t stream) {
  const AttentionShape& shape = args.shape;
  const int64_t num_rows =
      shape.num_sequences * shape.sequence_length * shape.num_heads;
  constexpr int kRowsOfBlock = plain::kNumThreads / gpu::kWarpSize;
  RETURN_IF_ERROR(Launch(DeltaKernel<typename Tiling::Element>,
                         (num_rows + kRowsOfBlock - 1) / kRowsOfBlock, 0, args,
                         stream));
  const int64_t num_tiles =
      plain::NumTiles<Tiling>(shape) * shape.num_sequences;
  constexpr int kSharedBytes = BackwardTiles<Tiling>::kBytes;
  RETURN_IF_ERROR(Launch(KeyValueGradientKernel<Tiling>,
                         num_tiles * shape.num_kv_heads, kSharedBytes, args,
                         stream));
  return Launch(QueryGradientKernel<Tiling>, num_tiles * shape.num_heads,
                kSharedBytes, args, stream);
}

}  // namespace

absl::Status LaunchPlainAttentionBackward(
    const PlainAttentionBackwardArgs& args, ElementType type,
    cudaStream_t stream) {
  RETURN_IF_ERROR(
      plain::CheckAttention("plain attention backward", args.shape));
  if (args.shape.num_sequences == 0) return absl::OkStatus();
  absl::Status status;
  plain::WithAttentionTiling<false>(
      type, args.shape.head_dim, [&]<typename Tiling>() {
        status.Update(LaunchAll<Tiling>(args, stream));
      });
  return status;
}

}  // namespace millrace
