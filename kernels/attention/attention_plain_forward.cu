#include <cmath>

#include "base/status_macros.h"
#include "kernels/attention/attention_plain.h"
#include "kernels/attention/attention_plain_tile.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

using plain::ColumnLane;
using plain::kLanes;
using plain::RowLane;

// One row's softmax so far.
struct RunningRow {
  int first_seen;  // Key.
  float maximum = -INFINITY;
  float sum = 0.0f;  // Sum of exp(score - maximum).
};

// Turns the scores of a row's next keys into weights, and returns what the
// output so far has to be multiplied by.
template <typename Tiling>
__device__ __forceinline__ float Weigh(RunningRow& row,
                                       float (&scores)[Tiling::kSide],
                                       int64_t position, int64_t key,
                                       float scale) {
  float maximum = -INFINITY;
#pragma unroll
  for (int j = 0; j < Tiling::kSide; ++j) {
    const int64_t key_position = key + ColumnLane() + kLanes * j;
    const bool sees =
        key_position >= row.first_seen && key_position <= position;
    scores[j] = sees ? scores[j] * scale : -INFINITY;
    maximum = fmaxf(maximum, scores[j]);
  }
  maximum = fmaxf(row.maximum, plain::RowMax(maximum));
  // A row that has seen nothing yet: its weights are zero, not NaN.
  const float shift = maximum == -INFINITY ? 0.0f : maximum;
  float sum = 0.0f;
#pragma unroll
  for (float& score : scores) {
    score = expf(score - shift);
    sum += score;
  }
  const float keep = expf(row.maximum - shift);
  row.sum = row.sum * keep + plain::RowSum(sum);
  row.maximum = maximum;
  return keep;
}

// A block takes a tile of queries of one head, from key tile to key tile; late
// tiles, which see the most keys, first. Limited by fp32 arithmetic. Two blocks
// a multiprocessor, which 128 registers a thread allow.
template <typename Tiling>
__global__ void __launch_bounds__(plain::kNumThreads, 2) AttentionForwardKernel(
    const __grid_constant__ PlainAttentionForwardArgs args) {
  using Element = typename Tiling::Element;
  constexpr int kSide = Tiling::kSide;
  extern __shared__ float4 shared[];
  float* const q_tile = reinterpret_cast<float*>(shared);
  float* const kv_tile = q_tile + Tiling::kHeadsFloats;
  float* const weights = kv_tile + Tiling::kHeadsFloats;
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

  RunningRow rows[kSide];
  float outputs[kSide][Tiling::kColumns] = {};
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    rows[i].first_seen = plain::FirstSeen(shape, starts, first_row + i);
  }
  plain::LoadHeads<Tiling>(q_tile, qkv + place.q + query * place.qkv_stride,
                           place.qkv_stride, num_queries, shape.head_dim);
  for (int64_t key = 0; key <= query; key += Tiling::kTile) {
    if (!plain::SeesAny<Tiling>(shape, starts, query, key)) continue;
    const int64_t num_keys = shape.sequence_length - key;
    plain::LoadHeads<Tiling>(kv_tile, qkv + place.k + key * place.qkv_stride,
                             place.qkv_stride, num_keys, shape.head_dim);
    __syncthreads();
    float scores[kSide][kSide];
    plain::MultiplyHeads<Tiling>(scores, q_tile, kv_tile);
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      const float keep =
          Weigh<Tiling>(rows[i], scores[i], first_row + i, key, scale);
#pragma unroll
      for (float& output : outputs[i]) output *= keep;
    }
    plain::StoreWeights<Tiling>(weights, scores);
    __syncthreads();
    plain::LoadHeads<Tiling>(kv_tile, qkv + place.v + key * place.qkv_stride,
                             place.qkv_stride, num_keys, shape.head_dim);
    __syncthreads();
    plain::AddWeighted<Tiling>(outputs, weights, kv_tile);
  }

#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    const float inverse = 1.0f / rows[i].sum;
#pragma unroll
    for (float& output : outputs[i]) output *= inverse;
    if (ColumnLane() == 0 && first_row + i < shape.sequence_length) {
      args.lse[place.stat + first_row + i] =
          rows[i].maximum + logf(rows[i].sum);
    }
  }
  plain::StoreHeads<Tiling>(
      static_cast<Element*>(args.o) + place.o + query * place.o_stride,
      place.o_stride, num_queries, shape.head_dim, outputs);
}

}  // namespace

absl::Status LaunchPlainAttentionForward(const PlainAttentionForwardArgs& args,
                                         ElementType type,
                                         cudaStream_t stream) {
  const AttentionShape& shape = args.shape;
  RETURN_IF_ERROR(plain::CheckAttention("plain attention forward", shape));
  if (shape.num_sequences == 0) return absl::OkStatus();
  absl::Status status;
  plain::WithAttentionTiling<true>(
      type, shape.head_dim, [&]<typename Tiling>() {
        const auto kernel = AttentionForwardKernel<Tiling>;
        constexpr int kSharedBytes =
            (2 * Tiling::kHeadsFloats + Tiling::kWeightFloats) * sizeof(float);
        status = AllowSharedBytes(reinterpret_cast<const void*>(kernel),
                                  kSharedBytes);
        if (!status.ok()) return;
        kernel<<<static_cast<unsigned>(plain::NumTiles<Tiling>(shape) *
                                       shape.num_sequences * shape.num_heads),
                 plain::kNumThreads, kSharedBytes, stream>>>(args);
      });
  RETURN_IF_ERROR(status);
  return CudaStatus(cudaGetLastError(), "launch plain attention forward");
}

}  // namespace millrace
