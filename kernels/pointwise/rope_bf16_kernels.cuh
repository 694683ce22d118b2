// The kernels of rope_bf16.h.

#ifndef MILLRACE_KERNELS_POINTWISE_ROPE_BF16_KERNELS_CUH_
#define MILLRACE_KERNELS_POINTWISE_ROPE_BF16_KERNELS_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/amax.cuh"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/fast_divide.h"
#include "kernels/cuda/vector.cuh"

namespace millrace::gpu {

inline constexpr int kRopeThreads = 256;

// Heads with one weight: the queries, the keys, or without QK-norm both.
struct RopePart {
  int first_block;
  int num_blocks;
  int first_head;
  FastDivisor num_heads;
  const void* weight;
};

struct RopeParams {
  __nv_bfloat16* out;  // Backward: in, too.
  int64_t out_token_stride;
  const __nv_bfloat16* in;
  int64_t in_token_stride;
  const float* table;
  const int32_t* position_ids;
  __nv_bfloat16* raw;       // [num_tokens, num_all_heads, 2 half], or null.
  float* rstd;              // [num_tokens, num_all_heads]; forward.
  const float* saved_rstd;  // The same; backward.
  float* partials;          // [number of blocks, head_dim]
  int64_t num_tokens;
  int64_t table_length;
  FastDivisor sequence_length;
  int half;      // Pairs of a head that turn.
  int head_dim;  // Twice as much, or more without QK-norm.
  int num_all_heads;
  float sine_sign;  // -1 turns back.
  float epsilon;
  bool fp32_weight;
  float weight_offset;  // Added to the weights.
  float* amax;  // Raised to the largest magnitude stored in `out`, or null.
  RopePart parts[2];
};

// A lane's elements of a head: eight of the first half and their partners.
struct RawPair {
  uint4 a, b;
};
struct HeadPair {
  Float8 a, b;
};

__device__ __forceinline__ HeadPair Unpack(const RawPair& raw) {
  return {Unpack8(raw.a), Unpack8(raw.b)};
}

__device__ __forceinline__ Float8 LoadFloats8(const float* address) {
  const float4 x = __ldg(reinterpret_cast<const float4*>(address));
  const float4 y = __ldg(reinterpret_cast<const float4*>(address) + 1);
  return {{x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w}};
}

// The head a group of kLanes lanes works on, and this lane's place in it.
struct RopeWork {
  int64_t token;
  int head;        // Among all heads.
  int element;     // In the first half.
  bool is_active;  // Idle lanes still take part in the shuffles.
};

template <int kLanes>
__device__ __forceinline__ RopeWork WorkOf(const RopeParams& p,
                                           const RopePart& part,
                                           int64_t first_item) {
  const auto item = static_cast<uint32_t>(first_item) + threadIdx.x / kLanes;
  const uint32_t token = part.num_heads.Quotient(item);
  RopeWork work;
  work.token = token;
  work.head =
      part.first_head + static_cast<int>(item - token * part.num_heads.divisor);
  work.element = threadIdx.x % kLanes * 8;
  work.is_active = work.token < p.num_tokens && work.element < p.half;
  return work;
}

// Returns the address of the work's elements in `rows`, input or output.
template <typename T>
__device__ __forceinline__ T* HeadAddress(const RopeParams& p, T* rows,
                                          int64_t token_stride,
                                          const RopeWork& work) {
  return rows + work.token * token_stride + work.head * p.head_dim +
         work.element;
}

__device__ __forceinline__ RawPair LoadHead(const RopeParams& p,
                                            const __nv_bfloat16* rows,
                                            int64_t token_stride,
                                            const RopeWork& work) {
  if (!work.is_active) return {};
  const __nv_bfloat16* head = HeadAddress(p, rows, token_stride, work);
  return {Load16Streaming(head), Load16Streaming(head + p.half)};
}

// Returns what it stored.
__device__ __forceinline__ RawPair StoreHead(const RopeParams& p,
                                             const RopeWork& work,
                                             const HeadPair& x) {
  const RawPair raw = {Pack8(x.a), Pack8(x.b)};
  __nv_bfloat16* head = HeadAddress(p, p.out, p.out_token_stride, work);
  Store16Streaming(head, raw.a);
  Store16Streaming(head + p.half, raw.b);
  return raw;
}

struct Angles {
  Float8 cosine, sine;
};

__device__ __forceinline__ Angles LoadAngles(const RopeParams& p,
                                             const RopeWork& work) {
  if (!work.is_active) return {};
  const auto token = static_cast<uint32_t>(work.token);
  const int64_t position = p.position_ids != nullptr
                               ? __ldg(p.position_ids + token)
                               : p.sequence_length.Remainder(token);
  const float* row = p.table + position * p.half + work.element;
  return {LoadFloats8(row), LoadFloats8(row + p.table_length * p.half)};
}

__device__ __forceinline__ HeadPair Turn(const HeadPair& x,
                                         const Angles& angles, float sign) {
  HeadPair turned;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float cosine = angles.cosine.v[j];
    const float sine = sign * angles.sine.v[j];
    turned.a.v[j] = x.a.v[j] * cosine - x.b.v[j] * sine;
    turned.b.v[j] = x.b.v[j] * cosine + x.a.v[j] * sine;
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

// Once for all heads that a lane works on.
template <int kLanes>
__device__ __forceinline__ HeadPair LoadWeight(const RopeParams& p,
                                               const RopePart& part) {
  const int element = threadIdx.x % kLanes * 8;
  if (element >= p.half) return {};
  HeadPair pair;
  if (p.fp32_weight) {
    const auto* weight = static_cast<const float*>(part.weight) + element;
    pair = {LoadFloats8(weight), LoadFloats8(weight + p.half)};
  } else {
    const auto* weight =
        static_cast<const __nv_bfloat16*>(part.weight) + element;
    pair = {Unpack8(Load16(weight)), Unpack8(Load16(weight + p.half))};
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    pair.a.v[j] += p.weight_offset;
    pair.b.v[j] += p.weight_offset;
  }
  return pair;
}

// One group of kLanes lanes a head. Limited by memory bandwidth; that several
// heads of a token share its angles is left to the first-level cache, since
// more heads a lane made it slower.
template <int kLanes>
__global__ void __launch_bounds__(kRopeThreads)
    RopeKernel(const __grid_constant__ RopeParams p) {
  constexpr int kGroups = kRopeThreads / kLanes;
  const RopeWork work =
      WorkOf<kLanes>(p, p.parts[0], int64_t{blockIdx.x} * kGroups);
  const RawPair raw = LoadHead(p, p.in, p.in_token_stride, work);
  const Angles angles = LoadAngles(p, work);
  RawPair stored{};
  if (work.is_active) {
    stored = StoreHead(p, work, Turn(Unpack(raw), angles, p.sine_sign));
  }
  if (p.amax != nullptr) {
    RaiseAmax<kRopeThreads>(p.amax,
                            LargerPair(LargerPair(0, stored.a), stored.b));
  }
}

// The forward pass with QK-norm: blocks of either part walk over its heads, a
// group of kLanes lanes for each, and keep the weight in registers; the next
// heads are on their way to shared memory, each lane's share copied by itself.
// Limited by memory bandwidth.
template <int kLanes, int kBlocksPerMultiprocessor, int kStages>
__global__ void __launch_bounds__(kRopeThreads, kBlocksPerMultiprocessor)
    RopeNormForwardKernel(const __grid_constant__ RopeParams p) {
  constexpr int kGroups = kRopeThreads / kLanes;
  __shared__ uint4 stages[kStages][2][kRopeThreads];
  const RopePart& part =
      p.parts[static_cast<int>(blockIdx.x) >= p.parts[1].first_block];
  const float inverse_dim = 1.0f / static_cast<float>(2 * p.half);
  const int64_t num_items = p.num_tokens * part.num_heads.divisor;
  const int64_t step = int64_t{part.num_blocks} * kGroups;
  int64_t first = (int64_t{blockIdx.x} - part.first_block) * kGroups;
  auto prefetch = [&](int64_t first_item, int stage) {
    if (first_item < num_items) {
      const RopeWork work = WorkOf<kLanes>(p, part, first_item);
      if (work.is_active) {
        const __nv_bfloat16* head =
            HeadAddress(p, p.in, p.in_token_stride, work);
        CopyAsync16(&stages[stage][0][threadIdx.x], head);
        CopyAsync16(&stages[stage][1][threadIdx.x], head + p.half);
      }
    }
    CommitCopies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    prefetch(first + stage * step, stage);
  }
  const HeadPair weight = LoadWeight<kLanes>(p, part);
  int stage = 0;
#pragma unroll 1
  for (; first < num_items; first += step) {
    const RopeWork work = WorkOf<kLanes>(p, part, first);
    const Angles angles = LoadAngles(p, work);
    WaitCopiesAllBut<kStages - 1>();
    HeadPair x{};
    if (work.is_active) {
      const RawPair raw = {stages[stage][0][threadIdx.x],
                           stages[stage][1][threadIdx.x]};
      x = Unpack(raw);
      if (p.raw != nullptr) {
        __nv_bfloat16* kept =
            HeadAddress(p, p.raw, int64_t{2} * p.num_all_heads * p.half, work);
        Store16Streaming(kept, raw.a);
        Store16Streaming(kept + p.half, raw.b);
      }
    }
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      squares += x.a.v[j] * x.a.v[j] + x.b.v[j] * x.b.v[j];
    }
    const float rstd =
        rsqrtf(LanesSum<kLanes>(squares) * inverse_dim + p.epsilon);
    prefetch(first + kStages * step, stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (work.is_active) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        x.a.v[j] *= rstd * weight.a.v[j];
        x.b.v[j] *= rstd * weight.b.v[j];
      }
      StoreHead(p, work, Turn(x, angles, 1.0f));
      if (work.element == 0) {
        p.rstd[work.token * p.num_all_heads + work.head] = rstd;
      }
    }
  }
}

// The backward pass with QK-norm: as forward, and each lane keeps its share of
// the gradient of the weight in registers. Limited by memory bandwidth.
template <int kLanes, int kBlocksPerMultiprocessor>
__global__ void __launch_bounds__(kRopeThreads, kBlocksPerMultiprocessor)
    RopeNormBackwardKernel(const __grid_constant__ RopeParams p) {
  LetNextKernelStart();
  constexpr int kGroups = kRopeThreads / kLanes;
  const RopePart& part =
      p.parts[static_cast<int>(blockIdx.x) >= p.parts[1].first_block];
  const float inverse_dim = 1.0f / static_cast<float>(2 * p.half);
  const int64_t num_items = p.num_tokens * part.num_heads.divisor;
  const HeadPair weight = LoadWeight<kLanes>(p, part);
  HeadPair d_weight{};
  uint32_t largest = 0;
#pragma unroll 1
  for (int64_t first = (int64_t{blockIdx.x} - part.first_block) * kGroups;
       first < num_items; first += int64_t{part.num_blocks} * kGroups) {
    const RopeWork work = WorkOf<kLanes>(p, part, first);
    const RawPair raw_d = LoadHead(p, p.out, p.out_token_stride, work);
    const RawPair raw_x = LoadHead(p, p.in, p.in_token_stride, work);
    const float rstd =
        work.is_active
            ? __ldg(p.saved_rstd + work.token * p.num_all_heads + work.head)
            : 0.0f;
    // With n = x rstd: g = d_y weight, d_x = rstd (g - n mean of g n).
    const HeadPair d_y =
        Turn(Unpack(raw_d), LoadAngles(p, work), /*sign=*/-1.0f);
    HeadPair n = Unpack(raw_x);
    HeadPair g;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      n.a.v[j] *= rstd;
      n.b.v[j] *= rstd;
      g.a.v[j] = d_y.a.v[j] * weight.a.v[j];
      g.b.v[j] = d_y.b.v[j] * weight.b.v[j];
      sum += g.a.v[j] * n.a.v[j] + g.b.v[j] * n.b.v[j];
      d_weight.a.v[j] += d_y.a.v[j] * n.a.v[j];
      d_weight.b.v[j] += d_y.b.v[j] * n.b.v[j];
    }
    const float mean = LanesSum<kLanes>(sum) * inverse_dim;
    if (work.is_active) {
      HeadPair d_x;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        d_x.a.v[j] = rstd * (g.a.v[j] - n.a.v[j] * mean);
        d_x.b.v[j] = rstd * (g.b.v[j] - n.b.v[j] * mean);
      }
      const RawPair stored = StoreHead(p, work, d_x);
      if (p.amax != nullptr) {
        largest = LargerPair(LargerPair(largest, stored.a), stored.b);
      }
    }
  }
  if (p.amax != nullptr) RaiseAmax<kRopeThreads>(p.amax, largest);

  // The groups' shares, added in their order.
  __shared__ float shares[kGroups][2][8 * kLanes];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int element = threadIdx.x % kLanes * 8 + j;
    shares[threadIdx.x / kLanes][0][element] = d_weight.a.v[j];
    shares[threadIdx.x / kLanes][1][element] = d_weight.b.v[j];
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

#endif  // MILLRACE_KERNELS_POINTWISE_ROPE_BF16_KERNELS_CUH_
