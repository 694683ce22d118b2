// What the backward attention kernel moves: queries, keys and values into
// shared memory, fragments into tiles, gradients out.

#ifndef MILLRACE_KERNELS_ATTENTION_BF16_BACKWARD_COPIES_CUH_
#define MILLRACE_KERNELS_ATTENTION_BF16_BACKWARD_COPIES_CUH_

#include <cstdint>

#include "kernels/attention_bf16_backward_around.cuh"
#include "kernels/attention_bf16_backward_tile.cuh"
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
// their delta, and once, behind the first queries, keys and values.
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
  for (int g = 0; g < p.heads_per_kv; ++g) {
    const int head = work.kv_head * p.heads_per_kv + g;
    const int64_t first_row =
        (static_cast<int64_t>(head) * p.lengths.blocks_per_head +
         sequence.first_block) *
        C::kBlockM;
    for (int m = work.begin; m < work.end; ++m) {
      uint64_t* q_full = &barriers.q_full[queries.stage];
      BarrierWait(&barriers.q_empty[queries.stage], queries.parity);
      BarrierArriveExpect(q_full, C::kQueryBytes + C::kRowBytes);
      load(shared.q + queries.stage * C::kQueryBytes, C::kBlockM, p.q, q_full,
           m * C::kBlockM, head, CachePolicy::kEvictLast);
      LoadBulk(shared.lse + queries.stage * C::kBlockM,
               p.rows.lse_log2 + first_row + m * C::kBlockM, C::kRowBytes,
               q_full);
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
      LoadBulk(shared.delta + outputs.stage * C::kBlockM,
               p.rows.delta + first_row + m * C::kBlockM, C::kRowBytes,
               d_o_full);
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

// Adds one consumer's chunks to the query gradient by way of shared memory.
template <typename C>
class QueryGradientSum {
 public:
  __device__ __forceinline__ QueryGradientSum(const Params& p, const Work& work,
                                              const Shared& shared,
                                              int consumer)
      : p_(p),
        work_(work),
        chunk_(reinterpret_cast<float*>(shared.d_q +
                                        consumer * kQueryGradientChunkBytes)),
        consumer_(consumer) {}

  // Adds piece `piece` of query block `block` of all, block `m` of its
  // sequence; nothing if `block` is below zero. By the whole warpgroup.
  __device__ __forceinline__ void Add(const float (&d_q)[32], int block, int m,
                                      int piece) {
    const int thread = threadIdx.x % kWarpgroupSize;
    const bool leader = thread == 0;
    if (leader) {
      if (p_.order != nullptr && piece == 0) {
        Publish();
      } else {
        WaitStoresRead<0>();
      }
    }
    NamedBarrierSync(kWarpgroupBarrier + consumer_, kWarpgroupSize);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      *reinterpret_cast<float4*>(chunk_ + (j * kWarpgroupSize + thread) * 4) =
          make_float4(d_q[4 * j], d_q[4 * j + 1], d_q[4 * j + 2],
                      d_q[4 * j + 3]);
    }
    FenceSharedForAsync();
    NamedBarrierSync(kWarpgroupBarrier + consumer_, kWarpgroupSize);
    if (!leader || block < 0) return;
    if (p_.order != nullptr && piece == 0) AwaitTurn(block, m);
    ReduceAddBulk(p_.rows.d_q + ((static_cast<int64_t>(block) * 2 + consumer_) *
                                     C::kPieces +
                                 piece) *
                                    kQueryGradientChunk,
                  chunk_, kQueryGradientChunkBytes);
    CommitStores();
  }

  // After the last piece, by the first thread.
  __device__ __forceinline__ void Finish() {
    if (p_.order != nullptr) Publish();
  }

 private:
  // The next block's sum may follow only what has reached memory; having left
  // shared memory is not enough.
  __device__ __forceinline__ void Publish() {
    WaitStores<0>();
    if (unpublished_ < 0) return;
    asm volatile("fence.proxy.async.global;" ::: "memory");
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(Counter())
                 : "memory");
    unpublished_ = -1;
  }

  __device__ __forceinline__ void AwaitTurn(int block, int m) {
    unpublished_ = block;
    const int rank = Rank<C>(p_, work_, m);
    int done;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                   : "=r"(done)
                   : "l"(Counter())
                   : "memory");
    } while (done != rank);
    asm volatile("fence.proxy.async.global;" ::: "memory");
  }

  __device__ __forceinline__ int* Counter() const {
    return p_.order + unpublished_ * 2 + consumer_;
  }

  const Params& p_;
  const Work& work_;
  float* chunk_;
  int unpublished_ = -1;  // The block whose sum may not be in memory yet.
  int consumer_;
};

// Stores one consumer's part of a gradient of the keys out of the swizzled tile
// `tile`. By the whole warpgroup.
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

#endif  // MILLRACE_KERNELS_ATTENTION_BF16_BACKWARD_COPIES_CUH_
