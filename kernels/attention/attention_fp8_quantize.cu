#include "kernels/attention/attention_fp8_quantize.h"

#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "kernels/attention/attention_fp8_shape.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"

namespace millrace {
namespace {

using gpu::kWarpSize;

// Four floats as e4m3, rounded to nearest even; the first in the lowest byte.
__device__ __forceinline__ uint32_t PackFp8(float a, float b, float c,
                                            float d) {
  const uint32_t low =
      __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E4M3);
  const uint32_t high =
      __nv_cvt_float2_to_fp8x2({c, d}, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

// The largest of a block of threads, in every thread. `scratch` holds a float a
// warp and may be used again after the next block barrier.
__device__ __forceinline__ float BlockMax(float x, float* scratch) {
  x = gpu::WarpMax(x);
  if (threadIdx.x % kWarpSize == 0) scratch[threadIdx.x / kWarpSize] = x;
  __syncthreads();
  x = scratch[0];
  for (int warp = 1; warp < static_cast<int>(blockDim.x) / kWarpSize; ++warp) {
    x = fmaxf(x, scratch[warp]);
  }
  return x;
}

struct RotateParams {
  Fp8Heads out;
  float* scale;  // [sequences, heads, blocks]
  Bf16Heads in;
  const float* rope_table;
  uint64_t signs[2];
  int sequence_length, num_heads, num_blocks, heads_per_block;
};

// A head's row of kHeadDim elements belongs to four lanes: chunk c of lane l
// starts at element 32 c + 8 l. So partners of the rotary embedding sit in one
// lane, and only two of the transform's steps cross lanes.
template <int kHeadDim>
struct Row {
  static constexpr int kChunks = kHeadDim / 32;
  float v[kChunks][8];
};

template <int kHeadDim>
__device__ __forceinline__ void Rotate(const RotateParams& p, int token,
                                       int lane, Row<kHeadDim>& row) {
  constexpr int kHalf = kHeadDim / 2;
#pragma unroll
  for (int c = 0; c < kHeadDim / 64; ++c) {
    // Else all of the table's values would be loaded first, into registers that
    // there are not.
    asm volatile("" ::: "memory");
    const float* cosine =
        p.rope_table + static_cast<int64_t>(token) * kHalf + c * 32 + lane * 8;
    const float* sine =
        cosine + static_cast<int64_t>(p.sequence_length) * kHalf;
#pragma unroll
    for (int quad = 0; quad < 8; quad += 4) {
      const float4 cos4 = *reinterpret_cast<const float4*>(cosine + quad);
      const float4 sin4 = *reinterpret_cast<const float4*>(sine + quad);
      const float cosines[4] = {cos4.x, cos4.y, cos4.z, cos4.w};
      const float sines[4] = {sin4.x, sin4.y, sin4.z, sin4.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& low = row.v[c][quad + i];
        float& high = row.v[c + kHeadDim / 64][quad + i];
        const float a = low;
        const float b = high;
        low = a * cosines[i] - b * sines[i];
        high = b * cosines[i] + a * sines[i];
      }
    }
  }
}

// H D of the row, without the factor 1 / sqrt(kHeadDim).
template <int kHeadDim>
__device__ __forceinline__ void Transform(const RotateParams& p, int lane,
                                          Row<kHeadDim>& row) {
  constexpr int kChunks = Row<kHeadDim>::kChunks;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const uint32_t signs =
        static_cast<uint32_t>(p.signs[c / 2] >> (c % 2 * 32 + lane * 8));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      row.v[c][i] =
          __uint_as_float(__float_as_uint(row.v[c][i]) ^ (signs >> i << 31));
    }
#pragma unroll
    for (int stride = 1; stride < 8; stride *= 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i & stride) continue;
        const float a = row.v[c][i];
        const float b = row.v[c][i + stride];
        row.v[c][i] = a + b;
        row.v[c][i + stride] = a - b;
      }
    }
#pragma unroll
    for (int stride = 1; stride < 4; stride *= 2) {
      const float sign = lane & stride ? -1.0f : 1.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float other = __shfl_xor_sync(~0u, row.v[c][i], stride);
        row.v[c][i] = fmaf(sign, row.v[c][i], other);
      }
    }
  }
#pragma unroll
  for (int stride = 1; stride < kChunks; stride *= 2) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c & stride) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float a = row.v[c][i];
        const float b = row.v[c + stride][i];
        row.v[c][i] = a + b;
        row.v[c + stride][i] = a - b;
      }
    }
  }
}

// One block of threads takes a block of kRows tokens of one head after another,
// so that the rotary table comes from its caches; four lanes a token, held in
// registers between the scale and the rounding. Limited by memory.
template <int kHeadDim, int kRows, bool kHadamard>
__global__ void __launch_bounds__(4 * kRows)
    RotateQuantizeKernel(const RotateParams p) {
  __shared__ float scratch[2][4 * kRows / kWarpSize];
  constexpr int kChunks = kHeadDim / 32;
  const int lane = threadIdx.x % 4;
  const int block = blockIdx.x;
  const int token = block * kRows + threadIdx.x / 4;
  const int sequence = blockIdx.z;
  const int first_head = blockIdx.y * p.heads_per_block;
  const int last_head = min(first_head + p.heads_per_block, p.num_heads);
  for (int head = first_head; head < last_head; ++head) {
    const __nv_bfloat16* in = static_cast<const __nv_bfloat16*>(p.in.data) +
                              sequence * p.in.sequence_stride +
                              head * p.in.head_stride +
                              token * p.in.token_stride + lane * 8;
    Row<kHeadDim> row;
    float largest = 0.0f;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint4 raw = {0, 0, 0, 0};
      if (token < p.sequence_length) raw = gpu::Load16Streaming(in + c * 32);
      const gpu::Float8 chunk = gpu::Unpack8(raw);
#pragma unroll
      for (int i = 0; i < 8; ++i) row.v[c][i] = chunk.v[i];
    }
    if (p.rope_table != nullptr && token < p.sequence_length) {
      Rotate<kHeadDim>(p, token, lane, row);
    }
    if constexpr (kHadamard) Transform<kHeadDim>(p, lane, row);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(row.v[c][i]));
    }
    // The two halves of `scratch` take turns, so one barrier a head is enough.
    largest = BlockMax(largest, scratch[(head - first_head) % 2]);
    constexpr float kNorm = !kHadamard        ? 1.0f
                            : kHeadDim == 128 ? 0.08838834764831845f
                                              : 0.125f;
    largest = fmaxf(largest, kFp8LeastMagnitude / kNorm);
    if (threadIdx.x == 0) {
      p.scale[(static_cast<int64_t>(sequence) * p.num_heads + head) *
                  p.num_blocks +
              block] = largest * (kNorm / kFp8Largest);
    }
    if (token >= p.sequence_length) continue;
    const float inverse = kFp8Largest / largest;
    uint8_t* out = static_cast<uint8_t*>(p.out.data) +
                   sequence * p.out.sequence_stride + head * p.out.head_stride +
                   token * p.out.token_stride + lane * 8;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const auto& v = row.v[c];
      *reinterpret_cast<uint2*>(out + c * 32) = {
          PackFp8(v[0] * inverse, v[1] * inverse, v[2] * inverse,
                  v[3] * inverse),
          PackFp8(v[4] * inverse, v[5] * inverse, v[6] * inverse,
                  v[7] * inverse)};
    }
  }
}

struct ValueParams {
  uint8_t* out;
  float* scale;
  Bf16Heads in;
  int sequence_length;
};

// One block of threads a block of keys of one head: a warp takes 32 tokens by
// 64 elements, a lane two elements, whose 16 tokens at a time are the 16 bytes
// that lie together in the output. Limited by memory.
template <int kHeadDim>
__global__ void __launch_bounds__(kFp8KeyBlock* kHeadDim / 64)
    QuantizeValuesKernel(const ValueParams p) {
  constexpr int kTokens = 32;  // A warp.
  constexpr int kNumWarps = kFp8KeyBlock / kTokens * (kHeadDim / 64);
  __shared__ float scratch[kNumWarps];
  const int warp = threadIdx.x / kWarpSize;
  const int group = warp / (kHeadDim / 64);
  const int element = warp % (kHeadDim / 64) * 64 + threadIdx.x % kWarpSize * 2;
  const int head = blockIdx.y;
  const int sequence = blockIdx.z;
  const int first_token = blockIdx.x * kFp8KeyBlock + group * kTokens;
  const __nv_bfloat16* in = static_cast<const __nv_bfloat16*>(p.in.data) +
                            sequence * p.in.sequence_stride +
                            head * p.in.head_stride + element;
  uint32_t pairs[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    pairs[t] = 0;
    if (first_token + t < p.sequence_length) {
      pairs[t] = __ldcs(reinterpret_cast<const uint32_t*>(
          in + (first_token + t) * p.in.token_stride));
    }
  }
  float largest = kFp8LeastMagnitude;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    largest = fmaxf(largest, fmaxf(fabsf(gpu::LowHalf(pairs[t])),
                                   fabsf(gpu::HighHalf(pairs[t]))));
  }
  largest = BlockMax(largest, scratch);
  const int64_t block =
      (static_cast<int64_t>(sequence) * gridDim.y + head) * gridDim.x +
      blockIdx.x;
  if (threadIdx.x == 0) p.scale[block] = largest / kFp8Largest;
  const float inverse = kFp8Largest / largest;
  uint8_t* out = p.out + block * kFp8KeyBlock * kHeadDim +
                 group * kTokens * kHeadDim + element / 8 * 256 +
                 element % 8 * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t low[4], high[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      uint32_t four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Fp8TokenAt(4 word + i).
        four[i] = pairs[half * 16 + i / 2 * 8 + word * 2 + i % 2];
      }
      low[word] = PackFp8(
          gpu::LowHalf(four[0]) * inverse, gpu::LowHalf(four[1]) * inverse,
          gpu::LowHalf(four[2]) * inverse, gpu::LowHalf(four[3]) * inverse);
      high[word] = PackFp8(
          gpu::HighHalf(four[0]) * inverse, gpu::HighHalf(four[1]) * inverse,
          gpu::HighHalf(four[2]) * inverse, gpu::HighHalf(four[3]) * inverse);
    }
    gpu::Store16(out + half * 128, {low[0], low[1], low[2], low[3]});
    gpu::Store16(out + half * 128 + 16, {high[0], high[1], high[2], high[3]});
  }
}

template <int kHeadDim, int kRows>
void LaunchRotate(RotateParams p, int num_sequences, bool hadamard,
                  cudaStream_t stream) {
  p.num_blocks = (p.sequence_length + kRows - 1) / kRows;
  // Fewer heads a block only where the device would not be filled.
  const int64_t all = int64_t{p.num_blocks} * p.num_heads * num_sequences;
  p.heads_per_block = static_cast<int>(std::clamp<int64_t>(all / 1024, 1, 8));
  const dim3 grid(p.num_blocks,
                  (p.num_heads + p.heads_per_block - 1) / p.heads_per_block,
                  num_sequences);
  if (hadamard) {
    RotateQuantizeKernel<kHeadDim, kRows, true>
        <<<grid, 4 * kRows, 0, stream>>>(p);
  } else {
    RotateQuantizeKernel<kHeadDim, kRows, false>
        <<<grid, 4 * kRows, 0, stream>>>(p);
  }
}

template <int kHeadDim>
absl::Status Launch(const QuantizeQkvFp8Args& args, cudaStream_t stream) {
  const AttentionFp8Shape& shape = args.shape;
  const int num_sequences = static_cast<int>(shape.num_sequences);
  RotateParams p = {.out = args.q,
                    .scale = args.q_scale,
                    .in = args.q_in,
                    .rope_table = args.rope_table,
                    .signs = {args.signs[0], args.signs[1]},
                    .sequence_length = static_cast<int>(shape.sequence_length),
                    .num_heads = static_cast<int>(shape.num_heads)};
  LaunchRotate<kHeadDim, kFp8QueryBlock>(p, num_sequences, args.hadamard,
                                         stream);
  RETURN_IF_ERROR(CudaStatus(cudaGetLastError(), "launch RotateQuantize"));
  p.out = args.k;
  p.scale = args.k_scale;
  p.in = args.k_in;
  p.num_heads = static_cast<int>(shape.num_kv_heads);
  LaunchRotate<kHeadDim, kFp8KeyBlock>(p, num_sequences, args.hadamard, stream);
  RETURN_IF_ERROR(CudaStatus(cudaGetLastError(), "launch RotateQuantize"));
  const dim3 grid(static_cast<unsigned>(NumFp8KeyBlocks(shape)),
                  static_cast<unsigned>(shape.num_kv_heads), num_sequences);
  QuantizeValuesKernel<kHeadDim>
      <<<grid, kFp8KeyBlock * kHeadDim / 64, 0, stream>>>(
          {.out = static_cast<uint8_t*>(args.v),
           .scale = args.v_scale,
           .in = args.v_in,
           .sequence_length = static_cast<int>(shape.sequence_length)});
  return CudaStatus(cudaGetLastError(), "launch QuantizeValues");
}

}  // namespace

absl::Status LaunchQuantizeQkvFp8(const QuantizeQkvFp8Args& args,
                                  cudaStream_t stream) {
  RETURN_IF_ERROR(CheckAttentionFp8Shape(args.shape));
  if (args.shape.num_sequences == 0) return absl::OkStatus();
  return args.shape.head_dim == 128 ? Launch<128>(args, stream)
                                    : Launch<64>(args, stream);
}

}  // namespace millrace
