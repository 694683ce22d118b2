// The workspace that the passes of the portable backward attention share:
// softmax statistics of each query, and the fp32 query gradient while it is
// summed.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_PORTABLE_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_PORTABLE_CUH_

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_bf16_portable.cuh"
#include "kernels/cuda/mma.cuh"

namespace millrace::portable {

// Every head of every sequence has its rows padded to whole blocks of these.
inline constexpr int kRowBlock = 64;

// Row r of the workspace belongs to one query of one head: d_q has head_dim
// floats of it, LSE is to base 2. Padding has an LSE of +infinity, which makes
// its probabilities zero.
struct BackwardRows {
  float* d_q;
  float* lse_log2;
  float* delta;
  int64_t rows_per_head;  // In one sequence, or in all packed documents.
};

inline int64_t RowsPerHead(const AttentionBf16Shape& shape) {
  const int64_t blocks =
      shape.document_offsets == nullptr
          ? (shape.sequence_length + kRowBlock - 1) / kRowBlock
          : shape.total_tokens / kRowBlock + shape.num_sequences;
  return blocks * kRowBlock;
}

inline int64_t NumRows(const AttentionBf16Shape& shape) {
  const int64_t heads = shape.document_offsets == nullptr
                            ? shape.num_sequences * shape.num_heads
                            : shape.num_heads;
  return heads * RowsPerHead(shape);
}

inline BackwardRows PlaceRows(const AttentionBf16Shape& shape,
                              void* workspace) {
  const int64_t num_rows = NumRows(shape);
  BackwardRows rows;
  rows.d_q = static_cast<float*>(workspace);
  rows.lse_log2 = rows.d_q + num_rows * shape.head_dim;
  rows.delta = rows.lse_log2 + num_rows;
  rows.rows_per_head = RowsPerHead(shape);
  return rows;
}

// The first row of one head of one sequence. Document d begins at block
// first_token / kRowBlock + d, which leaves each room for a partial block.
__device__ __forceinline__ int64_t FirstRow(const BackwardRows& rows,
                                            const Sequences& all,
                                            const Place& place, int head) {
  if (all.offsets != nullptr) {
    return head * rows.rows_per_head +
           (place.first_token / kRowBlock + place.index) *
               static_cast<int64_t>(kRowBlock);
  }
  return (static_cast<int64_t>(place.index) * all.num_heads + head) *
         rows.rows_per_head;
}

// The query gradient is summed in the order of the tensor-core fragments, so
// that a warp's additions are contiguous: accumulator `idx` of a lane, of
// kPerWarp of this warp. Devices that add four floats at a time keep them
// together.
template <int kPerWarp>
__device__ __forceinline__ float* GradientAt(float* block, int warp, int idx) {
  const int lane = threadIdx.x % kWarpSize;
#if __CUDA_ARCH__ >= 900
  return block + ((warp * kPerWarp + idx) * kWarpSize + lane) * 4;
#else
  return block + (warp * kPerWarp + idx) * kWarpSize * 4 + lane;
#endif
}

__device__ __forceinline__ void AddGradient(float* at, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float4*>(at), make_float4(x[0], x[1], x[2], x[3]));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) atomicAdd(at + i * kWarpSize, x[i]);
#endif
}

__device__ __forceinline__ float4 ReadGradient(const float* at) {
#if __CUDA_ARCH__ >= 900
  return *reinterpret_cast<const float4*>(at);
#else
  return {at[0], at[kWarpSize], at[2 * kWarpSize], at[3 * kWarpSize]};
#endif
}

// Lanes that share a row, 16 bytes each at a time.
__host__ __device__ constexpr int RowLanes(int head_dim) {
  return head_dim == 96 ? 4 : (head_dim < 128 ? head_dim / 8 : 16);
}

// One group of kLanes lanes a query row: delta = sum of d_o x o, LSE to base 2;
// clears the row's share of the query gradient. Limited by memory bandwidth.
template <int kHeadDim>
__global__ void __launch_bounds__(256)
    BackwardRowsKernel(Bf16Heads o, Bf16Heads d_o, const float* lse,
                       BackwardRows rows, Sequences sequences,
                       int blocks_per_head, bool clear_gradient) {
  constexpr int kLanes = RowLanes(kHeadDim);
  constexpr int kChunks = kHeadDim / 8 / kLanes;
  const int row = static_cast<int>(
      (blockIdx.x % blocks_per_head * blockDim.x + threadIdx.x) / kLanes);
  const int lane = threadIdx.x % kLanes;
  const int all_heads = blockIdx.x / blocks_per_head;
  const int head = all_heads % sequences.num_heads;
  const Place place = PlaceOf(sequences, all_heads / sequences.num_heads);
  const int padded = (place.length + kRowBlock - 1) / kRowBlock * kRowBlock;
  if (row / kRowBlock * kRowBlock >= padded) return;  // Whole warps.
  float sum = 0.0f;
  if (row < place.length) {
    const __nv_bfloat16* left =
        RowsOf(o, sequences, place, head) + row * o.token_stride;
    const __nv_bfloat16* right =
        RowsOf(d_o, sequences, place, head) + row * d_o.token_stride;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint4 a =
          *reinterpret_cast<const uint4*>(left + (i * kLanes + lane) * 8);
      const uint4 b =
          *reinterpret_cast<const uint4*>(right + (i * kLanes + lane) * 8);
      const auto* x = reinterpret_cast<const __nv_bfloat162*>(&a);
      const auto* y = reinterpret_cast<const __nv_bfloat162*>(&b);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 f = __bfloat1622float2(x[j]);
        const float2 g = __bfloat1622float2(y[j]);
        sum += f.x * g.x + f.y * g.y;
      }
    }
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(~0u, sum, offset);
  }
  const int64_t idx = FirstRow(rows, sequences, place, head) + row;
  if (lane == 0) {
    constexpr float kLog2E = 1.4426950408889634f;
    rows.delta[idx] = sum;
    rows.lse_log2[idx] =
        row < place.length
            ? lse[FirstLse(sequences, place, head) + row] * kLog2E
            : INFINITY;
  }
  if (!clear_gradient) return;
  float4* d_q = reinterpret_cast<float4*>(rows.d_q + idx * kHeadDim);
#pragma unroll
  for (int i = 0; i < kHeadDim / 4 / kLanes; ++i) {
    d_q[i * kLanes + lane] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

// The threads of C, one block kBlockM queries: scales and rounds the summed
// query gradient. Limited by memory bandwidth.
template <typename C>
__global__ void __launch_bounds__(C::kNumThreads)
    BackwardRoundKernel(Bf16Heads d_q, BackwardRows rows, Sequences sequences,
                        int blocks_per_head, float scale) {
  const int all_heads = blockIdx.x / blocks_per_head;
  const int head = all_heads % sequences.num_heads;
  const Place place = PlaceOf(sequences, all_heads / sequences.num_heads);
  const int first_query = blockIdx.x % blocks_per_head * C::kBlockM;
  if (first_query >= place.length) return;
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  float* block =
      rows.d_q +
      (FirstRow(rows, sequences, place, head) + first_query) * C::kHeadDim;
  __nv_bfloat16* to = RowsOf(d_q, sequences, place, head);
#pragma unroll
  for (int r = 0; r < C::kGradientRows / 16; ++r) {
#pragma unroll
    for (int j = 0; j < C::kGradientColumns / 8; ++j) {
      const float4 x = ReadGradient(GradientAt<C::kGradientPerWarp>(
          block, warp, r * (C::kGradientColumns / 8) + j));
      const int row = first_query + C::GradientRow(warp) + 16 * r + lane / 4;
      const int column = C::GradientColumn(warp) + 8 * j + lane % 4 * 2;
      if (row < place.length) {
        *reinterpret_cast<uint32_t*>(to + row * d_q.token_stride + column) =
            gpu::PackBf16(x.x * scale, x.y * scale);
      }
      if (row + 8 < place.length) {
        *reinterpret_cast<uint32_t*>(to + (row + 8) * d_q.token_stride +
                                     column) =
            gpu::PackBf16(x.z * scale, x.w * scale);
      }
    }
  }
}

// The query gradient in its own pass over the keys, in an order that never
// varies; `rows` has its statistics.
absl::Status LaunchQueryGradient(const AttentionBackwardBf16Args& args,
                                 const BackwardRows& rows, cudaStream_t stream);

}  // namespace millrace::portable

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_PORTABLE_CUH_
