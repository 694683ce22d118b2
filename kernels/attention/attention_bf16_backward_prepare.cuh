// The kernels around the backward attention kernel: row statistics before it,
// and after it the conversion of the query gradient, and of the gradients of
// keys where they come in parts.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_PREPARE_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_PREPARE_CUH_

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/status.h"

namespace millrace::attention_backward {

// Queries of one step of the backward kernel.
__host__ __device__ constexpr int BackwardBlockM(int64_t head_dim) {
  return head_dim == 64 ? 128 : 64;
}

// Keys of one block of the backward kernel.
__host__ __device__ constexpr int BackwardBlockN(int64_t head_dim) {
  return head_dim <= 128 ? 128 : 64;
}

// Columns of the gradients while they are summed in fp32.
__host__ __device__ constexpr int BackwardColumns(int64_t head_dim) {
  return static_cast<int>((head_dim + 63) / 64 * 64);
}

// Gradients are kept in chunks of 64 x 64 fp32, those of a block one after the
// other, by rows and then by columns. Each is in the order of the tensor-core
// fragment: float4 j of thread t at j * 128 + t.
inline constexpr int kGradientChunk = 64 * 64;
inline constexpr int kGradientChunkBytes = kGradientChunk * 4;
__host__ __device__ constexpr int BackwardChunks(int64_t head_dim) {
  return BackwardBlockM(head_dim) * BackwardColumns(head_dim) / kGradientChunk;
}
__host__ __device__ constexpr int BackwardKeyChunks(int64_t head_dim) {
  return BackwardBlockN(head_dim) * BackwardColumns(head_dim) / kGradientChunk;
}

// Where one sequence lies.
struct BackwardSequence {
  int index;        // For tensor maps, zero if packed.
  int first_token;  // Zero unless packed.
  int length;
  int first_block;  // The first of its query blocks in a head.
};

// A block's share of the work: block `position` of a sequence, for one head.
// There may be no such block: a sequence then has fewer.
struct BackwardPlace {
  BackwardSequence sequence;
  int position;
  int head;
};

struct BackwardLengths {
  const int32_t* document_offsets;
  int num_sequences, num_heads;
  int sequence_length;
  int blocks_per_head;  // Query blocks.
  int total_tokens;     // If packed.

  // Blocks of `block` tokens to make room for, of one head of all sequences.
  // Where documents lie only the device knows: document d, which begins at
  // token t, has the blocks from t / block + d on. Rounding down and one more a
  // document keeps documents apart.
  __host__ __device__ constexpr int NumBlocks(int block) const {
    return document_offsets == nullptr
               ? num_sequences * BlocksPerSequence(block)
               : total_tokens / block + num_sequences;
  }

  // Returns the work of the grid's block `idx`. Each of `heads` has
  // NumBlocks(kBlock) blocks; query blocks have kBlockM tokens. All lanes of a
  // warp must call it.
  template <int kBlockM, int kBlock>
  __device__ __forceinline__ BackwardPlace Find(int idx, int heads) const {
    if (document_offsets == nullptr) {
      const int blocks = BlocksPerSequence(kBlock);
      const int index = idx / blocks / heads;
      return {.sequence = {.index = index,
                           .first_token = 0,
                           .length = sequence_length,
                           .first_block = index * BlocksPerSequence(kBlockM)},
              .position = idx % blocks,
              .head = idx / blocks % heads};
    }
    const int blocks = NumBlocks(kBlock);
    const int block = idx % blocks;
    const int document = DocumentOf<kBlock>(block);
    const int start = document_offsets[document];
    const int first = start / kBlock + document;
    return {.sequence = {.index = 0,
                         .first_token = start,
                         .length = document_offsets[document + 1] - start,
                         .first_block = start / kBlockM + document},
            // Before the first document there is nothing.
            .position = block >= first ? block - first : blocks,
            .head = idx / blocks};
  }

  // Returns the place of a sequence's first token in the caller's LSE.
  __device__ __forceinline__ int64_t LseAt(const BackwardSequence& sequence,
                                           int head) const {
    return document_offsets == nullptr
               ? (static_cast<int64_t>(sequence.index) * num_heads + head) *
                     sequence_length
               : static_cast<int64_t>(head) * total_tokens +
                     sequence.first_token;
  }

 private:
  __host__ __device__ constexpr int BlocksPerSequence(int block) const {
    return (sequence_length + block - 1) / block;
  }
  // The last whose blocks begin at or before `block`: 32 documents at once.
  template <int kBlock>
  __device__ __forceinline__ int DocumentOf(int block) const {
    int document = 0;
    for (int first = 0; first < num_sequences; first += hopper::kWarpSize) {
      const int mine = first + threadIdx.x % hopper::kWarpSize;
      const bool begins = mine < num_sequences &&
                          document_offsets[mine] / kBlock + mine <= block;
      const int num_begun = __popc(__ballot_sync(~0u, begins));
      if (num_begun > 0) document = first + num_begun - 1;
      if (num_begun < hopper::kWarpSize) break;
    }
    return document;
  }
};

inline BackwardLengths LengthsOf(const AttentionBf16Shape& shape) {
  BackwardLengths lengths = {
      .document_offsets = shape.document_offsets,
      .num_sequences = static_cast<int>(shape.num_sequences),
      .num_heads = static_cast<int>(shape.num_heads),
      .sequence_length = static_cast<int>(shape.sequence_length),
      .blocks_per_head = 0,
      .total_tokens = static_cast<int>(shape.total_tokens)};
  lengths.blocks_per_head = lengths.NumBlocks(BackwardBlockM(shape.head_dim));
  return lengths;
}

// Returns the bytes that one query head keeps in the cache: its queries, its
// output gradients, and the fp32 sums of its query gradients.
inline int64_t QueryHeadBytes(const AttentionBf16Shape& shape) {
  return shape.sequence_length * BackwardColumns(shape.head_dim) *
         int64_t{2 + 2 + 4};
}

// Returns into how many parts the query heads of one key head are divided. Each
// part is the work of other blocks, and the gradients of keys are the sums of
// the parts'. There is one part, except
// - where there would be so few blocks that multiprocessors are idle. An H200
//   has 132, and causal blocks differ in length, so that each needs two.
// - where the query heads of a causal part would fill the L2 cache, since its
//   short blocks are at later query heads than its long ones. There the sums of
//   all parts take no more memory than those of the query gradients.
// On an H200 with 8192 tokens, 8 query heads on one of keys: 1.9 ms with one
// part, 0.55 with four (docs/results/2026-11-30-attention-backward.md).
inline int NumKeyParts(const AttentionBf16Shape& shape) {
  constexpr int64_t kCacheBytes = int64_t{32} << 20;
  const bool is_windowed =
      shape.window != 0 && shape.window < shape.sequence_length;
  const bool are_alike = !shape.causal || is_windowed;
  const int64_t enough_blocks = are_alike ? 128 : 256;
  const int64_t num_tokens = shape.document_offsets == nullptr
                                 ? shape.num_sequences * shape.sequence_length
                                 : shape.total_tokens;
  const int64_t num_blocks =
      num_tokens / BackwardBlockN(shape.head_dim) * shape.num_kv_heads;
  const int64_t heads_per_kv = shape.num_heads / shape.num_kv_heads;
  int64_t num_parts = 1;
  const auto needs_more = [&] {
    const int64_t heads = heads_per_kv / num_parts;
    return num_parts * num_blocks < enough_blocks ||
           (!are_alike && heads > 2 &&
            heads * QueryHeadBytes(shape) > kCacheBytes);
  };
  while (heads_per_kv % (2 * num_parts) == 0 && needs_more()) num_parts *= 2;
  return static_cast<int>(num_parts);
}

// For every head its query blocks, whole: d_q with BackwardColumns() floats a
// row. LSE is to base 2; rows behind a sequence have +infinity, which makes
// their probabilities zero. `order` counts what was added to a block's query
// gradient, for each consumer. `key_parts`, if there are several parts: for
// every part of a key head its key blocks, of each the chunks of d_v and those
// of d_k.
struct BackwardRows {
  float* d_q;
  float* key_parts;
  float* lse_log2;
  float* delta;
  int* order;
};

inline int64_t KeyPartFloats(const AttentionBf16Shape& shape) {
  const int64_t num_parts = NumKeyParts(shape);
  if (num_parts == 1) return 0;
  return num_parts * shape.num_kv_heads *
         LengthsOf(shape).NumBlocks(BackwardBlockN(shape.head_dim)) * 2 *
         BackwardKeyChunks(shape.head_dim) * kGradientChunk;
}

inline BackwardRows PlaceBackwardRows(const AttentionBf16Shape& shape,
                                      void* workspace) {
  const int64_t num_rows = shape.num_heads * LengthsOf(shape).blocks_per_head *
                           BackwardBlockM(shape.head_dim);
  BackwardRows rows;
  rows.d_q = static_cast<float*>(workspace);
  rows.key_parts = rows.d_q + num_rows * BackwardColumns(shape.head_dim);
  rows.lse_log2 = rows.key_parts + KeyPartFloats(shape);
  rows.delta = rows.lse_log2 + num_rows;
  rows.order = reinterpret_cast<int*>(rows.delta + num_rows);
  return rows;
}

inline int64_t BackwardRowsBytes(const AttentionBf16Shape& shape) {
  const int64_t block = BackwardBlockM(shape.head_dim);
  const int64_t num_blocks = shape.num_heads * LengthsOf(shape).blocks_per_head;
  return (num_blocks * (block * (BackwardColumns(shape.head_dim) + 2) + 2) +
          KeyPartFloats(shape)) *
         static_cast<int64_t>(sizeof(float));
}

// Rows of one head of one sequence.
__device__ __forceinline__ int64_t HeadOffset(const Bf16Heads& heads,
                                              const BackwardSequence& sequence,
                                              int head) {
  return sequence.index * heads.sequence_stride + head * heads.head_stride +
         sequence.first_token * heads.token_stride;
}

inline constexpr int kPreprocessThreads = 256;

// One group of lanes a query row, 16 bytes each: delta = sum of d_o x o, and
// clears the row's share of the query gradient. Limited by memory bandwidth.
template <int kHeadDim>
__global__ void BackwardPreprocessKernel(Bf16Heads o, Bf16Heads d_o,
                                         const float* lse, BackwardRows rows,
                                         BackwardLengths lengths) {
  constexpr int kLanes = BackwardColumns(kHeadDim) / 8;
  constexpr int kBlockM = BackwardBlockM(kHeadDim);
  constexpr int kRowsPerBlock = kPreprocessThreads / kLanes;
  static_assert(kBlockM % kRowsPerBlock == 0);
  constexpr int kParts = kBlockM / kRowsPerBlock;
  const int lane = threadIdx.x % kLanes;
  hopper::GridDependencyRelease();
  const BackwardPlace place =
      lengths.Find<kBlockM, kBlockM>(blockIdx.x / kParts, lengths.num_heads);
  const BackwardSequence& sequence = place.sequence;
  const int head = place.head;
  const int row = place.position * kBlockM +
                  blockIdx.x % kParts * kRowsPerBlock + threadIdx.x / kLanes;
  if (row >= (sequence.length + kBlockM - 1) / kBlockM * kBlockM) return;
  auto load = [&](const Bf16Heads& from) {
    return *reinterpret_cast<const uint4*>(
        static_cast<const __nv_bfloat16*>(from.data) +
        HeadOffset(from, sequence, head) + row * from.token_stride + lane * 8);
  };
  float sum = 0.0f;
  if (row < sequence.length && lane < kHeadDim / 8) {
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
  // Whole blocks of rows, a multiple of those of a warp: its lanes leave
  // together.
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(~0u, sum, offset);
  }
  const int64_t first_block =
      static_cast<int64_t>(head) * lengths.blocks_per_head +
      sequence.first_block;
  const int64_t idx = first_block * kBlockM + row;
  if (lane == 0) {
    constexpr float kLog2E = 1.4426950408889634f;
    rows.delta[idx] = sum;
    rows.lse_log2[idx] = row < sequence.length
                             ? lse[lengths.LseAt(sequence, head) + row] * kLog2E
                             : INFINITY;
    if (row % kBlockM < 2) {
      rows.order[idx / kBlockM * 2 + row % kBlockM] = 0;
    }
  }
  float4* d_q = reinterpret_cast<float4*>(rows.d_q) + idx * (kLanes * 2);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    d_q[i * kLanes + lane] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

// One thread's share of a chunk.
using ChunkFragment = float4[8];

// Scales and rounds a chunk, and brings it into rows of one head by way of
// shared memory; columns from kHeadDim on are left out. By a whole block of one
// warpgroup, once.
template <int kHeadDim>
__device__ __forceinline__ void StoreChunk(const ChunkFragment& x, float scale,
                                           const Bf16Heads& to,
                                           const BackwardSequence& sequence,
                                           int head, int first_row,
                                           int first_column) {
  constexpr int kPadding = 8;  // Against bank conflicts.
  __shared__ __align__(16) __nv_bfloat16 tile[64][64 + kPadding];
  const int thread = threadIdx.x;
  const int lane = thread % hopper::kWarpSize;
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
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i * 16 + thread / 8;
    const int column = thread % 8 * 8;
    if (first_row + row < sequence.length && first_column + column < kHeadDim) {
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(to.data) +
                                HeadOffset(to, sequence, head) +
                                (first_row + row) * to.token_stride +
                                first_column + column) =
          *reinterpret_cast<const uint4*>(&tile[row][column]);
    }
  }
}

// One warpgroup a chunk of the query gradient. Limited by memory bandwidth.
template <int kHeadDim>
__global__ void __launch_bounds__(hopper::kWarpgroupSize)
    BackwardPostprocessKernel(Bf16Heads d_q, const float* sums, float scale,
                              BackwardLengths lengths) {
  constexpr int kBlockM = BackwardBlockM(kHeadDim);
  constexpr int kChunks = BackwardChunks(kHeadDim);
  const int chunk = blockIdx.x % kChunks;
  const BackwardPlace place =
      lengths.Find<kBlockM, kBlockM>(blockIdx.x / kChunks, lengths.num_heads);
  const BackwardSequence& sequence = place.sequence;
  const int query_block = place.position;
  const int head = place.head;
  const int first_query =
      query_block * kBlockM + (kHeadDim == 64 ? chunk * 64 : 0);
  const int first_column = kHeadDim == 64 ? 0 : chunk * 64;
  if (first_query >= sequence.length) return;
  hopper::GridDependencyWait();
  const int64_t block = static_cast<int64_t>(head) * lengths.blocks_per_head +
                        sequence.first_block + query_block;
  const float4* from = reinterpret_cast<const float4*>(
      sums + (block * kChunks + chunk) * kGradientChunk);
  ChunkFragment x;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x[j] = from[j * hopper::kWarpgroupSize + threadIdx.x];
  }
  StoreChunk<kHeadDim>(x, scale, d_q, sequence, head, first_query,
                       first_column);
}

template <int kHeadDim>
absl::Status LaunchBackwardPreprocess(const AttentionBackwardBf16Args& args,
                                      const BackwardRows& rows,
                                      const BackwardLengths& lengths,
                                      cudaStream_t stream) {
  constexpr int kRowsPerBlock =
      kPreprocessThreads / (BackwardColumns(kHeadDim) / 8);
  constexpr int kBlockM = BackwardBlockM(kHeadDim);
  const int grid = lengths.NumBlocks(kBlockM) * (kBlockM / kRowsPerBlock) *
                   lengths.num_heads;
  BackwardPreprocessKernel<kHeadDim><<<grid, kPreprocessThreads, 0, stream>>>(
      args.o, args.d_o, args.lse, rows, lengths);
  return CudaStatus(cudaGetLastError(),
                    "launch the rows of attention backward");
}

// Starts `kernel`, which waits for the one before it, while that one ends.
template <typename... Args>
absl::Status LaunchBehind(void (*kernel)(Args...), int grid, int num_threads,
                          int shared_bytes, cudaStream_t stream,
                          std::type_identity_t<Args>... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(num_threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, args...),
                    "launch attention backward");
}

template <int kHeadDim>
absl::Status LaunchBackwardPostprocess(const AttentionBackwardBf16Args& args,
                                       const BackwardRows& rows, float scale,
                                       const BackwardLengths& lengths,
                                       cudaStream_t stream) {
  constexpr int kBlockM = BackwardBlockM(kHeadDim);
  const int grid =
      lengths.NumBlocks(kBlockM) * BackwardChunks(kHeadDim) * lengths.num_heads;
  return LaunchBehind(BackwardPostprocessKernel<kHeadDim>, grid,
                      hopper::kWarpgroupSize, 0, stream, args.d_q, rows.d_q,
                      scale, lengths);
}

}  // namespace millrace::attention_backward

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_PREPARE_CUH_
