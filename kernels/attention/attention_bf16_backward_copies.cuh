// The copies of the backward attention kernel: queries, keys and values into
// shared memory, fragments into tiles, gradients out.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_COPIES_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_COPIES_CUH_

#include <cstdint>

#include "kernels/attention/attention_bf16_backward_prepare.cuh"
#include "kernels/attention/attention_bf16_backward_tile.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/hopper.cuh"

namespace millrace::attention_backward {

// Named barriers: 0 is __syncthreads().
inline constexpr int kConsumersBarrier = 1;
inline constexpr int kWarpgroupBarrier = 2;  // + consumer.
inline constexpr int kTurnBarrier = 4;  // + consumer: its turn at the products.

// Position in a ring of one or two stages.
template <int kStages>
struct Ring {
  int stage = 0;
  int parity;
  __device__ __forceinline__ void Advance() {
    stage = kStages == 1 ? 0 : stage ^ 1;
    if (stage == 0) parity ^= 1;
  }
};

// One thread feeds the block: queries with their LSE, output gradients with
// their delta, and once, behind the first queries, keys and values. LSE and
// delta come by tensor maps although they lie in one piece: race checkers know
// how barriers order those copies, not LoadBulk().
template <typename C>
__device__ __forceinline__ void Produce(const Params& p, const Work& work,
                                        const Shared& shared) {
  Barriers& barriers = *shared.barriers;
  const BackwardSequence& sequence = work.sequence;
  auto load = [&](uint8_t* to, int rows, const CUtensorMap& map,
                  uint64_t* barrier, int first_row, int head,
                  CachePolicy policy) {
    for (int group = 0; group < C::kColumnGroups; ++group) {
      LoadTensor4(to + group * rows * 128, &map, barrier, group * 64,
                  sequence.first_token + first_row, head, sequence.index,
                  policy);
    }
  };
  Ring<C::kQueryStages> queries{.parity = 1};
  Ring<C::kOutputStages> outputs{.parity = 1};
  bool first = true;
  for (int g = 0; g < p.heads_per_part; ++g) {
    const int head = work.first_head + g;
    const int first_block =
        head * p.lengths.blocks_per_head + sequence.first_block;
    for (int m = work.begin; m < work.end; ++m) {
      uint64_t* q_full = &barriers.q_full[queries.stage];
      BarrierWait(&barriers.q_empty[queries.stage], queries.parity);
      BarrierArriveExpect(q_full, C::kQueryBytes + C::kRowBytes);
      load(shared.q + queries.stage * C::kQueryBytes, C::kBlockM, p.q, q_full,
           m * C::kBlockM, head, CachePolicy::kEvictLast);
      LoadMatrix(shared.lse + queries.stage * C::kBlockM, &p.lse_log2, q_full,
                 0, first_block + m);
      if (first) {
        first = false;
        BarrierArriveExpect(&barriers.kv_full, 2 * C::kKeyBytes);
        load(shared.k, C::kBlockN, p.k, &barriers.kv_full,
             work.key_block * C::kBlockN, work.kv_head,
             CachePolicy::kEvictFirst);
        load(shared.v, C::kBlockN, p.v, &barriers.kv_full,
             work.key_block * C::kBlockN, work.kv_head,
             CachePolicy::kEvictFirst);
      }
      uint64_t* d_o_full = &barriers.d_o_full[outputs.stage];
      BarrierWait(&barriers.d_o_empty[outputs.stage], outputs.parity);
      BarrierArriveExpect(d_o_full, C::kQueryBytes + C::kRowBytes);
      load(shared.d_o + outputs.stage * C::kQueryBytes, C::kBlockM, p.d_o,
           d_o_full, m * C::kBlockM, head, CachePolicy::kEvictLast);
      LoadMatrix(shared.delta + outputs.stage * C::kBlockM, &p.delta, d_o_full,
                 0, first_block + m);
      queries.Advance();
      outputs.Advance();
    }
  }
}

// Writes a [64, 16 * kSize] fragment as bf16 into the swizzled tile at
// `address` with groups of 64 columns `group_bytes` apart, rows from `row`.
template <int kSize>
__device__ __forceinline__ void StoreTile(const uint32_t (&packed)[kSize][4],
                                          uint32_t address, int group_bytes,
                                          int row) {
  const int lane = threadIdx.x % kWarpSize;
  row += threadIdx.x % kWarpgroupSize / kWarpSize * 16 + lane / 8 % 2 * 8 +
         lane % 8;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    const int chunk = 2 * j + lane / 16;
    StoreMatrix4(address + chunk / 8 * group_bytes + row * 128 +
                     (chunk % 8 ^ row % 8) * 16,
                 packed[j][0], packed[j][1], packed[j][2], packed[j][3]);
  }
}

template <int kSize>
__device__ __forceinline__ void Pack(const float (&from)[kSize],
                                     uint32_t (&to)[kSize / 8][4],
                                     float factor = 1.0f) {
#pragma unroll
  for (int k = 0; k < kSize / 8; ++k) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      to[k][r] = PackBfloat16(from[8 * k + 2 * r] * factor,
                              from[8 * k + 2 * r + 1] * factor);
    }
  }
}

__device__ __forceinline__ float2 LoadSharedFloat2(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(x.x), "=f"(x.y)
               : "r"(address));
  return x;
}

__device__ __forceinline__ void StoreSharedFloat4(uint32_t address, float x,
                                                  float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
}

// Hands one consumer's `index`-th chunk of the query gradient to its adder. By
// the whole warpgroup.
__device__ __forceinline__ void HandOver(const float (&d_q)[32],
                                         const Shared& shared, int consumer,
                                         int index) {
  const int thread = threadIdx.x % kWarpgroupSize;
  const uint32_t chunk =
      SharedAddress(shared.d_q) + consumer * kGradientChunkBytes;
  BarrierWait(&shared.barriers->d_q_empty[consumer], index % 2 ^ 1);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    StoreSharedFloat4(chunk + (j * kWarpgroupSize + thread) * 16, d_q[4 * j],
                      d_q[4 * j + 1], d_q[4 * j + 2], d_q[4 * j + 3]);
  }
  FenceSharedForAsync();
  __syncwarp();
  if (thread % kWarpSize == 0) {
    BarrierArrive(&shared.barriers->d_q_full[consumer]);
  }
}

// One thread a consumer adds its chunks to the query gradient, with p.order one
// block of keys after the other. Not the consumers themselves: with branches
// and loops between their products, and without LoadSharedFloat2()'s explicit
// loads, they took a tenth longer (both changes were measured together).
template <typename C>
__device__ __forceinline__ void AddChunks(const Params& p, const Work& work,
                                          const Shared& shared, int consumer) {
  uint64_t* full = &shared.barriers->d_q_full[consumer];
  uint64_t* empty = &shared.barriers->d_q_empty[consumer];
  const uint8_t* chunk = shared.d_q + consumer * kGradientChunkBytes;
  int parity = 0;
  for (int g = 0; g < p.heads_per_part; ++g) {
    const int head_block = (work.first_head + g) * p.lengths.blocks_per_head +
                           work.sequence.first_block;
    for (int m = work.begin; m < work.end; ++m) {
      const int share = (head_block + m) * 2 + consumer;
      int* done = p.order + share;
      for (int piece = 0; piece < C::kPieces; ++piece) {
        BarrierWait(full, parity);
        parity ^= 1;
        if (p.order != nullptr && piece == 0) {
          const int rank = Rank<C>(p, work, m);
          int count;
          do {
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                         : "=r"(count)
                         : "l"(done)
                         : "memory");
          } while (count != rank);
          asm volatile("fence.proxy.async.global;" ::: "memory");
        }
        ReduceAddBulk(
            p.rows.d_q + (static_cast<int64_t>(share) * C::kPieces + piece) *
                             kGradientChunk,
            chunk, kGradientChunkBytes);
        CommitStores();
        WaitStoresRead<0>();
        BarrierArrive(empty);
      }
      if (p.order != nullptr) {
        // The next block may follow only what has reached memory; having left
        // shared memory is not enough.
        WaitStores<0>();
        asm volatile("fence.proxy.async.global;" ::: "memory");
        asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(done)
                     : "memory");
      }
    }
  }
  WaitStores<0>();
}

// Stores one consumer's share of `from`, a gradient of one part of a key head,
// as chunks to `to`. By the whole warpgroup.
template <typename C>
__device__ __forceinline__ void StoreKeyPart(
    const float (&from)[C::kGradientColumns / 2], float* to, int consumer) {
  constexpr int kGroups = (C::kGradientColumns + 63) / 64;
  const int thread = threadIdx.x % kWarpgroupSize;
  auto* chunks =
      reinterpret_cast<float4*>(to + consumer * kGroups * kGradientChunk);
#pragma unroll
  for (int i = 0; i < C::kGradientColumns / 8; ++i) {
    chunks[i / 8 * (kGradientChunk / 4) + i % 8 * kWarpgroupSize + thread] =
        make_float4(from[4 * i], from[4 * i + 1], from[4 * i + 2],
                    from[4 * i + 3]);
  }
}

// Stores one consumer's share of a gradient of the keys out of the swizzled
// tile `tile`. By the whole warpgroup.
template <typename C>
__device__ __forceinline__ void StoreGradient(const CUtensorMap& map,
                                              const Bf16Heads& rows,
                                              const uint8_t* tile,
                                              const Work& work, int consumer) {
  constexpr int kGroups = (C::kGradientColumns + 63) / 64;
  const BackwardSequence& sequence = work.sequence;
  const int thread = threadIdx.x % kWarpgroupSize;
  const int tile_row = C::kSplitKeys ? consumer * 64 : 0;
  const int first_group = C::kSplitKeys ? 0 : consumer * kGroups;
  const int row = work.key_block * C::kBlockN + tile_row;
  // The tensor map ends behind the last document, not behind this one.
  if (rows.data == nullptr || row + 64 <= sequence.length) {
    if (thread == 0) {
      for (int group = first_group; group < first_group + kGroups; ++group) {
        StoreTensor4(&map, tile + group * C::kBlockN * 128 + tile_row * 128,
                     group * 64, sequence.first_token + row, work.kv_head,
                     sequence.index);
      }
      CommitStores();
    }
    return;
  }
  for (int i = thread; i < 64 * kGroups * 8; i += kWarpgroupSize) {
    const int group = first_group + i % (kGroups * 8) / 8;
    const int chunk = i % 8;
    const int r = i / (kGroups * 8);
    const int column = group * 64 + chunk * 8;
    if (row + r < sequence.length && column < C::kHeadDim) {
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(rows.data) +
                                HeadOffset(rows, sequence, work.kv_head) +
                                (row + r) * rows.token_stride + column) =
          *reinterpret_cast<const uint4*>(tile + group * C::kBlockN * 128 +
                                          (tile_row + r) * 128 +
                                          (chunk ^ r % 8) * 16);
    }
  }
}

}  // namespace millrace::attention_backward

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_COPIES_CUH_
