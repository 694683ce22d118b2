// What surrounds the backward attention kernel: row statistics before it, and
// the conversion of the query gradient after it.

#ifndef MILLRACE_KERNELS_ATTENTION_BF16_BACKWARD_AROUND_CUH_
#define MILLRACE_KERNELS_ATTENTION_BF16_BACKWARD_AROUND_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention_bf16.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/status.h"

namespace millrace {

// Queries of one step of the backward kernel.
__host__ __device__ constexpr int BackwardBlockM(int64_t head_dim) {
  return head_dim == 128 ? 64 : 128;
}

// The query gradient is summed in chunks of 64 x 64 fp32, two a query block,
// each in the order of the tensor-core fragment: float4 j of thread t at j *
// 128 + t.
inline constexpr int kQueryGradientChunk = 64 * 64;
inline constexpr int kQueryGradientChunkBytes = kQueryGradientChunk * 4;

inline int64_t PaddedSequence(const AttentionBf16Shape& shape) {
  const int64_t block = BackwardBlockM(shape.head_dim);
  return (shape.sequence_length + block - 1) / block * block;
}

// [num_sequences, num_heads, padded sequence] each, d_q with head_dim floats a
// row. LSE is to base 2; rows of the padding have +infinity, which makes their
// probabilities zero.
struct BackwardRows {
  float* d_q;
  float* lse_log2;
  float* delta;
};

inline BackwardRows PlaceBackwardRows(const AttentionBf16Shape& shape,
                                      void* workspace) {
  const int64_t num_rows =
      shape.num_sequences * shape.num_heads * PaddedSequence(shape);
  BackwardRows rows;
  rows.d_q = static_cast<float*>(workspace);
  rows.lse_log2 = rows.d_q + num_rows * shape.head_dim;
  rows.delta = rows.lse_log2 + num_rows;
  return rows;
}

// One group of kHeadDim / 8 lanes a query row: delta = sum of d_o x o, and
// clears the row's share of the query gradient. Limited by memory bandwidth.
template <int kHeadDim>
__global__ void BackwardPreprocessKernel(Bf16Heads o, Bf16Heads d_o,
                                         const float* lse, BackwardRows rows,
                                         int sequence_length,
                                         int padded_sequence, int num_heads) {
  constexpr int kLanes = kHeadDim / 8;  // 16 bytes each.
  const int row =
      static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kLanes);
  const int lane = threadIdx.x % kLanes;
  const int64_t head = blockIdx.y % num_heads;
  const int64_t sequence = blockIdx.y / num_heads;
  if (row >= padded_sequence) return;
  auto load = [&](const Bf16Heads& from) {
    return *reinterpret_cast<const uint4*>(
        static_cast<const __nv_bfloat16*>(from.data) +
        sequence * from.sequence_stride + head * from.head_stride +
        row * from.token_stride + lane * 8);
  };
  float sum = 0.0f;
  if (row < sequence_length) {
    const uint4 left = load(o);
    const uint4 right = load(d_o);
    const auto* x = reinterpret_cast<const __nv_bfloat162*>(&left);
    const auto* y = reinterpret_cast<const __nv_bfloat162*>(&right);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 a = __bfloat1622float2(x[i]);
      const float2 b = __bfloat1622float2(y[i]);
      sum += a.x * b.x + a.y * b.y;
    }
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(~0u, sum, offset);
  }
  const int64_t idx = static_cast<int64_t>(blockIdx.y) * padded_sequence + row;
  if (lane == 0) {
    constexpr float kLog2E = 1.4426950408889634f;
    rows.delta[idx] = sum;
    rows.lse_log2[idx] =
        row < sequence_length
            ? lse[static_cast<int64_t>(blockIdx.y) * sequence_length + row] *
                  kLog2E
            : INFINITY;
  }
  float4* d_q = reinterpret_cast<float4*>(rows.d_q) + idx * (kHeadDim / 4);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    d_q[i * kLanes + lane] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

// One warpgroup a chunk: scales, rounds, and brings fragments into rows by way
// of shared memory. Limited by memory bandwidth.
template <int kHeadDim>
__global__ void __launch_bounds__(hopper::kWarpgroupSize)
    BackwardPostprocessKernel(Bf16Heads d_q, const float* sums, float scale,
                              int sequence_length, int num_query_blocks,
                              int num_heads) {
  constexpr int kBlockM = BackwardBlockM(kHeadDim);
  constexpr int kPadding = 8;  // Against bank conflicts.
  __shared__ __align__(16) __nv_bfloat16 tile[64][64 + kPadding];
  const int query_block = blockIdx.x / 2;
  const int half = blockIdx.x % 2;
  const int64_t head = blockIdx.y % num_heads;
  const int64_t sequence = blockIdx.y / num_heads;
  const int thread = threadIdx.x;
  const int lane = thread % hopper::kWarpSize;
  const float4* chunk =
      reinterpret_cast<const float4*>(sums) +
      (static_cast<int64_t>(blockIdx.y) * num_query_blocks * 2 + blockIdx.x) *
          (kQueryGradientChunk / 4);
  float4 x[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] = chunk[j * hopper::kWarpgroupSize + thread];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int row = thread / hopper::kWarpSize * 16 + lane / 4;
    const int column = j * 8 + lane % 4 * 2;
    *reinterpret_cast<uint32_t*>(&tile[row][column]) =
        hopper::PackBfloat16(x[j].x * scale, x[j].y * scale);
    *reinterpret_cast<uint32_t*>(&tile[row + 8][column]) =
        hopper::PackBfloat16(x[j].z * scale, x[j].w * scale);
  }
  __syncthreads();
  const int first_query =
      query_block * kBlockM + (kHeadDim == 64 ? half * 64 : 0);
  const int first_column = kHeadDim == 64 ? 0 : half * 64;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i * 16 + thread / 8;
    const int column = thread % 8 * 8;
    if (first_query + row < sequence_length) {
      *reinterpret_cast<uint4*>(
          static_cast<__nv_bfloat16*>(d_q.data) +
          sequence * d_q.sequence_stride + head * d_q.head_stride +
          (first_query + row) * d_q.token_stride + first_column + column) =
          *reinterpret_cast<const uint4*>(&tile[row][column]);
    }
  }
}

template <int kHeadDim>
absl::Status LaunchBackwardPreprocess(const AttentionBackwardBf16Args& args,
                                      const BackwardRows& rows,
                                      cudaStream_t stream) {
  constexpr int kNumThreads = 256;
  constexpr int kRowsPerBlock = kNumThreads / (kHeadDim / 8);
  const AttentionBf16Shape& shape = args.shape;
  const int padded = static_cast<int>(PaddedSequence(shape));
  const dim3 grid(
      static_cast<unsigned>((padded + kRowsPerBlock - 1) / kRowsPerBlock),
      static_cast<unsigned>(shape.num_heads * shape.num_sequences));
  BackwardPreprocessKernel<kHeadDim><<<grid, kNumThreads, 0, stream>>>(
      args.o, args.d_o, args.lse, rows, static_cast<int>(shape.sequence_length),
      padded, static_cast<int>(shape.num_heads));
  return CudaStatus(cudaGetLastError(),
                    "launch the rows of attention backward");
}

template <int kHeadDim>
absl::Status LaunchBackwardPostprocess(const AttentionBackwardBf16Args& args,
                                       const BackwardRows& rows, float scale,
                                       cudaStream_t stream) {
  const AttentionBf16Shape& shape = args.shape;
  const int num_query_blocks =
      static_cast<int>(PaddedSequence(shape) / BackwardBlockM(kHeadDim));
  const dim3 grid(static_cast<unsigned>(num_query_blocks * 2),
                  static_cast<unsigned>(shape.num_heads * shape.num_sequences));
  BackwardPostprocessKernel<kHeadDim>
      <<<grid, hopper::kWarpgroupSize, 0, stream>>>(
          args.d_q, rows.d_q, scale, static_cast<int>(shape.sequence_length),
          num_query_blocks, static_cast<int>(shape.num_heads));
  return CudaStatus(cudaGetLastError(),
                    "launch the query gradient of attention backward");
}

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_BF16_BACKWARD_AROUND_CUH_
