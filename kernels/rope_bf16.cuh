// The kernels of rope_bf16.h.

#ifndef MILLRACE_KERNELS_ROPE_BF16_CUH_
#define MILLRACE_KERNELS_ROPE_BF16_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/vector.cuh"

namespace millrace::gpu {

inline constexpr int kRopeThreads = 256;

// Heads with one weight: the queries, the keys, or without QK-norm both. The
// heads of a token are dealt to num_slots groups of lanes, every num_slots-th
// to one.
struct RopePart {
  int first_block;
  int num_blocks;
  int first_head;
  int num_heads;
  unsigned num_slots;
  const void* weight;
};

struct RopeParams {
  __nv_bfloat16* out;  // Backward: in, too.
  int64_t out_token_stride;
  const __nv_bfloat16* in;
  int64_t in_token_stride;
  const float* table;
  const int32_t* position_ids;
  float* rstd;              // [num_tokens, num_all_heads]; forward.
  const float* saved_rstd;  // The same; backward.
  float* partials;          // [number of blocks, head_dim]
  int64_t num_tokens;
  int64_t table_length;
  unsigned sequence_length;
  int half;  // head_dim / 2
  int num_all_heads;
  float sine_sign;  // -1 turns back.
  float epsilon;
  RopePart parts[2];
};

// A lane's elements of a head: eight of the first half and their partners.
struct HeadPair {
  Float8 a, b;
};

__device__ __forceinline__ Float8 LoadFloats8(const float* address) {
  const float4 x = __ldg(reinterpret_cast<const float4*>(address));
  const float4 y = __ldg(reinterpret_cast<const float4*>(address) + 1);
  return {{x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w}};
}

__device__ __forceinline__ HeadPair Turn(const HeadPair& x,
                                         const Float8& cosine,
                                         const Float8& sine) {
  HeadPair turned;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    turned.a.v[j] = x.a.v[j] * cosine.v[j] - x.b.v[j] * sine.v[j];
    turned.b.v[j] = x.b.v[j] * cosine.v[j] + x.a.v[j] * sine.v[j];
  }
  return turned;
}

template <int kLanes>
__device__ __forceinline__ float LanesSum(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(~0u, x, offset);
  }
  return x;
}

// What a group of kLanes lanes works on, and this lane's place in it.
struct RopeWork {
  int64_t token;
  int slot;
  int element;     // Of the first half.
  bool is_active;  // Idle lanes still take part in the shuffles.
};

template <int kLanes>
__device__ __forceinline__ RopeWork WorkOf(const RopeParams& p,
                                           const RopePart& part, int64_t item) {
  RopeWork work;
  work.token = static_cast<unsigned>(item) / part.num_slots;
  work.slot = static_cast<int>(static_cast<unsigned>(item) % part.num_slots);
  work.element = threadIdx.x % kLanes * 8;
  work.is_active = work.token < p.num_tokens && work.element < p.half;
  return work;
}

__device__ __forceinline__ void LoadTurn(const RopeParams& p,
                                         const RopeWork& work, Float8* cosine,
                                         Float8* sine) {
  if (!work.is_active) return;
  const int64_t position =
      p.position_ids != nullptr
          ? __ldg(p.position_ids + work.token)
          : static_cast<unsigned>(work.token) % p.sequence_length;
  const float* row = p.table + position * p.half + work.element;
  *cosine = LoadFloats8(row);
  *sine = LoadFloats8(row + p.table_length * p.half);
#pragma unroll
  for (int j = 0; j < 8; ++j) sine->v[j] *= p.sine_sign;
}

template <int kLanes>
__device__ __forceinline__ HeadPair LoadWeight(const RopeParams& p,
                                               const RopePart& part) {
  const int element = threadIdx.x % kLanes * 8;
  if (element >= p.half) return {};
  const auto* weight = static_cast<const __nv_bfloat16*>(part.weight) + element;
  return {Unpack8(Load16(weight)), Unpack8(Load16(weight + p.half))};
}

// One group of kLanes lanes for up to kHeads heads of a token, which share the
// angles; with QK-norm blocks walk over the tokens, to keep the weights.
// Limited by memory bandwidth.
template <int kLanes, int kHeads, bool kNorm, int kBlocksPerMultiprocessor>
__global__ void __launch_bounds__(kRopeThreads, kBlocksPerMultiprocessor)
    RopeKernel(const __grid_constant__ RopeParams p) {
  constexpr int kGroups = kRopeThreads / kLanes;
  const RopePart& part =
      p.parts[kNorm && static_cast<int>(blockIdx.x) >= p.parts[1].first_block];
  const float inverse_dim = 1.0f / static_cast<float>(2 * p.half);
  const int64_t num_items = p.num_tokens * part.num_slots;
  HeadPair weight{};
  if constexpr (kNorm) weight = LoadWeight<kLanes>(p, part);

#pragma unroll 1
  for (int64_t first = (int64_t{blockIdx.x} - part.first_block) * kGroups;
       first < num_items; first += int64_t{part.num_blocks} * kGroups) {
    const RopeWork work = WorkOf<kLanes>(p, part, first + threadIdx.x / kLanes);
    uint4 raw[kHeads][2];
    const __nv_bfloat16* in =
        p.in + work.token * p.in_token_stride + work.element;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const int head = work.slot + i * static_cast<int>(part.num_slots);
      raw[i][0] = raw[i][1] = uint4{};
      if (work.is_active && head < part.num_heads) {
        const __nv_bfloat16* from = in + (part.first_head + head) * 2 * p.half;
        raw[i][0] = Load16Streaming(from);
        raw[i][1] = Load16Streaming(from + p.half);
      }
    }
    Float8 cosine{}, sine{};
    LoadTurn(p, work, &cosine, &sine);

    __nv_bfloat16* out = p.out + work.token * p.out_token_stride + work.element;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const int head = work.slot + i * static_cast<int>(part.num_slots);
      HeadPair x = {Unpack8(raw[i][0]), Unpack8(raw[i][1])};
      float rstd = 1.0f;
      if constexpr (kNorm) {
        float squares = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          squares += x.a.v[j] * x.a.v[j] + x.b.v[j] * x.b.v[j];
        }
        rstd = rsqrtf(LanesSum<kLanes>(squares) * inverse_dim + p.epsilon);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          x.a.v[j] *= rstd * weight.a.v[j];
          x.b.v[j] *= rstd * weight.b.v[j];
        }
      }
      if (work.is_active && head < part.num_heads) {
        const HeadPair turned = Turn(x, cosine, sine);
        __nv_bfloat16* to = out + (part.first_head + head) * 2 * p.half;
        Store16Streaming(to, Pack8(turned.a));
        Store16Streaming(to + p.half, Pack8(turned.b));
        if (kNorm && work.element == 0) {
          p.rstd[work.token * p.num_all_heads + part.first_head + head] = rstd;
        }
      }
    }
  }
}

// The backward pass with QK-norm: blocks of either part walk over its tokens,
// a group of kLanes lanes for up to kHeads heads of a token, and keep their
// share of the gradient of the weight in registers. Limited by memory
// bandwidth.
template <int kLanes, int kHeads, int kBlocksPerMultiprocessor>
__global__ void __launch_bounds__(kRopeThreads, kBlocksPerMultiprocessor)
    RopeNormBackwardKernel(const __grid_constant__ RopeParams p) {
  LetNextKernelStart();
  constexpr int kGroups = kRopeThreads / kLanes;
  const int group = threadIdx.x / kLanes;
  const RopePart& part =
      p.parts[static_cast<int>(blockIdx.x) >= p.parts[1].first_block];
  const float inverse_dim = 1.0f / static_cast<float>(2 * p.half);
  const int64_t num_items = p.num_tokens * part.num_slots;
  const HeadPair weight = LoadWeight<kLanes>(p, part);
  HeadPair d_weight{};

#pragma unroll 1
  for (int64_t first = (int64_t{blockIdx.x} - part.first_block) * kGroups;
       first < num_items; first += int64_t{part.num_blocks} * kGroups) {
    const RopeWork work = WorkOf<kLanes>(p, part, first + group);
    uint4 raw[kHeads][4];
    float rstd[kHeads];
    __nv_bfloat16* d = p.out + work.token * p.out_token_stride + work.element;
    const __nv_bfloat16* in =
        p.in + work.token * p.in_token_stride + work.element;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const int head = work.slot + i * static_cast<int>(part.num_slots);
      rstd[i] = 0.0f;
#pragma unroll
      for (int k = 0; k < 4; ++k) raw[i][k] = uint4{};
      if (work.is_active && head < part.num_heads) {
        const int offset = (part.first_head + head) * 2 * p.half;
        raw[i][0] = Load16Streaming(d + offset);
        raw[i][1] = Load16Streaming(d + offset + p.half);
        raw[i][2] = Load16Streaming(in + offset);
        raw[i][3] = Load16Streaming(in + offset + p.half);
        rstd[i] = __ldg(p.saved_rstd + work.token * p.num_all_heads +
                        part.first_head + head);
      }
    }
    Float8 cosine{}, sine{};
    LoadTurn(p, work, &cosine, &sine);
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const int head = work.slot + i * static_cast<int>(part.num_slots);
      // With n = x rstd: g = d_y weight, d_x = rstd (g - n mean of g n).
      const HeadPair d_y =
          Turn({Unpack8(raw[i][0]), Unpack8(raw[i][1])}, cosine, sine);
      HeadPair n = {Unpack8(raw[i][2]), Unpack8(raw[i][3])};
      HeadPair g;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        n.a.v[j] *= rstd[i];
        n.b.v[j] *= rstd[i];
        g.a.v[j] = d_y.a.v[j] * weight.a.v[j];
        g.b.v[j] = d_y.b.v[j] * weight.b.v[j];
        sum += g.a.v[j] * n.a.v[j] + g.b.v[j] * n.b.v[j];
        d_weight.a.v[j] += d_y.a.v[j] * n.a.v[j];
        d_weight.b.v[j] += d_y.b.v[j] * n.b.v[j];
      }
      const float mean = LanesSum<kLanes>(sum) * inverse_dim;
      if (work.is_active && head < part.num_heads) {
        HeadPair d_x;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          d_x.a.v[j] = rstd[i] * (g.a.v[j] - n.a.v[j] * mean);
          d_x.b.v[j] = rstd[i] * (g.b.v[j] - n.b.v[j] * mean);
        }
        __nv_bfloat16* to = d + (part.first_head + head) * 2 * p.half;
        Store16Streaming(to, Pack8(d_x.a));
        Store16Streaming(to + p.half, Pack8(d_x.b));
      }
    }
  }

  // The groups' shares, added in their order.
  __shared__ float shares[kGroups][2][8 * kLanes];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    shares[group][0][threadIdx.x % kLanes * 8 + j] = d_weight.a.v[j];
    shares[group][1][threadIdx.x % kLanes * 8 + j] = d_weight.b.v[j];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < 2 * p.half; c += kRopeThreads) {
    float sum = 0.0f;
    for (int g = 0; g < kGroups; ++g) {
      sum += c < p.half ? shares[g][0][c] : shares[g][1][c - p.half];
    }
    p.partials[int64_t{blockIdx.x} * 2 * p.half + c] = sum;
  }
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_ROPE_BF16_CUH_
