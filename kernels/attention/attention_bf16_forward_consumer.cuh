// The shared memory and barriers of the forward kernel's block, and its
// consumer warpgroups. The producer and the storing warps are in
// attention_bf16_forward_sm90.cu.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_FORWARD_CONSUMER_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_FORWARD_CONSUMER_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/attention/attention_bf16_forward_tile.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/wgmma_attention.cuh"

namespace millrace::attention_forward {

template <typename C>
struct Barriers {
  uint64_t q_full[C::kQueryBuffers], q_empty[C::kQueryBuffers];
  uint64_t kv_full[C::kStages], kv_empty[C::kStages];
  int tile[C::kQueryBuffers][kTileFields];  // Travel with q_full.
};

struct Shared {
  uint8_t *q, *kv;
};

// Named barriers, 0 being __syncthreads(): a consumer's turn on the tensor
// cores; its warps have read their queries; its output may leave a buffer.
inline constexpr int kTurnBarrier = 1;    // + consumer.
inline constexpr int kReadBarrier = 4;    // + consumer.
inline constexpr int kOutputBarrier = 7;  // + 3 consumer + buffer.

// Position in a ring of stages.
template <int kStages>
struct Ring {
  int stage = 0;
  int parity = 0;
  __device__ __forceinline__ Ring Next() const {
    return stage + 1 == kStages ? Ring{0, parity ^ 1} : Ring{stage + 1, parity};
  }
};

// Waits for the queries of the next tile and reads what tile it is; a whole
// warp. The atomics order nothing (the barriers do), but race checkers do not
// know these barriers.
template <typename C>
__device__ __forceinline__ Tile AwaitTile(Barriers<C>& barriers,
                                          Ring<C::kQueryBuffers> at) {
  BarrierWait(&barriers.q_full[at.stage], at.parity);
  const int lane = threadIdx.x % kWarpSize;
  const int field =
      lane < kTileFields ? atomicAdd(&barriers.tile[at.stage][lane], 0) : 0;
  // The shuffles also tell the compiler that all lanes agree.
  return {.sequence = __shfl_sync(~0u, field, 0),
          .first_token = __shfl_sync(~0u, field, 1),
          .head = __shfl_sync(~0u, field, 2),
          .first_row = __shfl_sync(~0u, field, 3),
          .length = __shfl_sync(~0u, field, 4)};
}

// One consumer warpgroup: 64 query rows of every tile. While one consumer is in
// its softmax another has its turn on the tensor cores, and within a consumer
// the scores of the next block are computed together with the output of this.
template <typename C>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Params& p, Barriers<C>& barriers,
                                      const Shared& shared, int consumer)
      : p_(p),
        barriers_(barriers),
        consumer_(consumer),
        q_address_(SharedAddress(shared.q) + consumer * 64 * 128),
        kv_address_(SharedAddress(shared.kv)) {}

  __device__ __forceinline__ void Run() {
    if (consumer_ == C::kNumConsumers - 1) PassTurn();  // Consumer 0 begins.
    Ring<C::kQueryBuffers> q_ring;
    Work tile = Await(q_ring);
    while (tile.length != 0) {
      Begin(tile, q_ring.stage);
      while (true) {
        WalkTile(tile, q_ring.stage);
        if constexpr (C::kQueryBuffers == 1) break;
        const Work next = Await(q_ring.Next());
        if (next.length == 0) break;
        Cross(tile, q_ring.stage, next, q_ring.Next().stage);
        tile = next;
        q_ring = q_ring.Next();
      }
      End(tile, q_ring.stage);
      q_ring = q_ring.Next();
      tile = C::kQueryBuffers == 1 ? Await(q_ring) : Work{};
    }
  }

 private:
  // The part of a tile that one consumer computes.
  struct Work {
    int first_row;  // First of this consumer's 64 rows of the sequence.
    int length;     // Length of the sequence; zero: no more tiles.
    int lse_start;  // Start of the sequence.
    KeyBlocks blocks;
  };

  __device__ __forceinline__ Work Await(Ring<C::kQueryBuffers> at) {
    const Tile tile = AwaitTile<C>(barriers_, at);
    return {.first_row = tile.first_row + consumer_ * 64,
            .length = tile.length,
            .lse_start = tile.sequence * p_.lse_sequence_stride +
                         tile.head * p_.lse_head_stride + tile.first_token,
            .blocks = KeyBlocksOf<C>(p_, tile.first_row, tile.length)};
  }
  __device__ __forceinline__ void AwaitTurn() {
    NamedBarrierSync(kTurnBarrier + consumer_, 2 * kWarpgroupSize);
  }
  // Once the scores are there and only the output is left to the tensor cores;
  // with the vote of SoftmaxBlock() 2 to 3 % faster than when both are issued.
  __device__ __forceinline__ void PassTurn() {
    NamedBarrierArrive(kTurnBarrier + (consumer_ + 1) % C::kNumConsumers,
                       2 * kWarpgroupSize);
  }
  // The first of this thread's two rows.
  __device__ __forceinline__ int ThreadRow(const Work& tile) const {
    return tile.first_row + threadIdx.x % kWarpgroupSize / kWarpSize * 16 +
           threadIdx.x % kWarpSize / 4;
  }
  __device__ __forceinline__ void AwaitBlock(Ring<C::kStages> at) {
    BarrierWait(&barriers_.kv_full[at.stage], at.parity);
  }
  __device__ __forceinline__ void Release(Ring<C::kStages> at) {
    if (threadIdx.x % kWarpgroupSize == 0) {
      BarrierArrive(&barriers_.kv_empty[at.stage]);
    }
  }

  __device__ __forceinline__ void IssueScores(int q_buffer, int stage) {
    const uint32_t queries = q_address_ + q_buffer * C::kQueryBytes;
    const uint32_t keys = kv_address_ + stage * C::kKeyBytes;
#pragma unroll
    for (int k = 0; k < C::kHeadDim / 16; ++k) {
      MultiplyShared<C::kBlockN, false, false>(
          s_,
          SwizzledDescriptor(queries + k / 4 * C::kBlockM * 128 + k % 4 * 32,
                             0),
          SwizzledDescriptor(keys + k / 4 * C::kBlockN * 128 + k % 4 * 32, 0),
          k != 0);
    }
    WgmmaCommit();
  }
  __device__ __forceinline__ void IssueOutput(int stage) {
    const uint32_t values = kv_address_ + stage * C::kKeyBytes;
#pragma unroll
    for (int k = 0; k < C::kBlockN / 16; ++k) {
      MultiplyValues<C::kHeadDim>(
          o_, probabilities_[k],
          SwizzledDescriptor(values + k * 2048, C::kBlockN * 128),
          !(is_first_ && k == 0));
    }
    WgmmaCommit();
    is_first_ = false;
  }
  __device__ __forceinline__ void Pack() {
#pragma unroll
    for (int k = 0; k < C::kBlockN / 16; ++k) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        probabilities_[k][r] =
            PackBfloat16(s_[8 * k + 2 * r], s_[8 * k + 2 * r + 1]);
      }
    }
  }
  // The scores of a tile's last block of keys, where most masks act.
  __device__ __forceinline__ void FirstSoftmax(const Work& tile) {
    const KeyBlocks blocks = tile.blocks;
    next_block_ = blocks.last - 1;
    first_block_ = blocks.first;
    if (C::kVisible != Visible::kAll ||
        (blocks.last + 1) * C::kBlockN > tile.length) {
      MaskBlock<C>(p_, blocks.last, ThreadRow(tile), tile.length, s_);
    }
    rows_ = RowState{};
    SoftmaxBlock<C, true>(p_, s_, rows_);
    is_first_ = true;
  }

  // The scores of the first block of a tile that no other tile precedes.
  __device__ __forceinline__ void Begin(const Work& tile, int q_buffer) {
    AwaitBlock(kv_ring_);
    AwaitTurn();
    RegisterFence(s_);
    WgmmaFence();
    IssueScores(q_buffer, kv_ring_.stage);
    WgmmaWait<0>();
    PassTurn();
    RegisterFence(s_);
    Release(kv_ring_);
    kv_ring_ = kv_ring_.Next();
    FirstSoftmax(tile);
    Pack();
  }

  // From block to block within a tile. `hides` says whether the mask acts here:
  // one copy of the products for both, since ptxas serialises those it finds on
  // two sides of a branch.
  template <bool kMasked>
  __device__ __forceinline__ void Step(const Work& tile, int q_buffer,
                                       bool hides = kMasked) {
    const Ring<C::kStages> values = kv_ring_.Next();
    AwaitBlock(kv_ring_);
    AwaitTurn();
    RegisterFence(s_);
    RegisterFence(o_);
    WgmmaFence();
    IssueScores(q_buffer, kv_ring_.stage);
    AwaitBlock(values);
    IssueOutput(values.stage);
    WgmmaWait<1>();
    PassTurn();
    RegisterFence(s_);
    Release(kv_ring_);
    if constexpr (kMasked) {
      if (hides) {
        MaskBlock<C>(p_, next_block_, ThreadRow(tile), tile.length, s_);
      }
    }
    SoftmaxBlock<C, kMasked>(p_, s_, rows_);
    WgmmaWait<0>();
    RegisterFence(o_);
    Release(values);
    kv_ring_ = values.Next();
    Pack();
    if (rows_.must_rescale) {
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 2; ++i) {
        o_[i] *= rows_.rescale[i / 2 % 2];
      }
    }
    --next_block_;
  }

  // All blocks of a tile but the first, whose probabilities are there; the
  // output of the last is left to do.
  __device__ __forceinline__ void WalkTile(const Work& tile, int q_buffer) {
    const int first_row = tile.first_row;
    if constexpr (C::kVisible == Visible::kCausal) {
#pragma unroll 1
      while (next_block_ >= 0 &&
             (next_block_ + 1) * C::kBlockN > first_row + 1) {
        Step<true>(tile, q_buffer);
      }
    }
    if constexpr (C::kVisible == Visible::kWindow) {
      // Keys that all rows see.
      const int begin = first_row + 63 - p_.window + 1;
      const int end = first_row + (p_.window_ahead ? p_.window : 1);
#pragma unroll 1
      while (next_block_ >= first_block_) {
        Step<true>(tile, q_buffer,
                   next_block_ * C::kBlockN < begin ||
                       (next_block_ + 1) * C::kBlockN > end);
      }
    } else {
#pragma unroll 1
      while (next_block_ >= 0) Step<false>(tile, q_buffer);
    }
  }

  // From the last block of one tile to the first of the next.
  __device__ __forceinline__ void Cross(const Work& tile, int q_buffer,
                                        const Work& next, int next_q_buffer) {
    const Ring<C::kStages> values = kv_ring_.Next();
    AwaitBlock(kv_ring_);
    AwaitTurn();
    RegisterFence(s_);
    RegisterFence(o_);
    WgmmaFence();
    IssueScores(next_q_buffer, kv_ring_.stage);
    AwaitBlock(values);
    IssueOutput(values.stage);
    const RowState done = rows_;
    WgmmaWait<1>();
    PassTurn();
    RegisterFence(s_);
    Release(kv_ring_);
    FirstSoftmax(next);
    WgmmaWait<0>();
    RegisterFence(o_);
    Release(values);
    kv_ring_ = values.Next();
    Pack();
    // All warps have read their queries: they met at AwaitTurn().
    WriteOutput(tile, q_buffer, done);
  }

  // The output of the last block of a tile that no other tile follows at once.
  __device__ __forceinline__ void End(const Work& tile, int q_buffer) {
    AwaitBlock(kv_ring_);
    RegisterFence(o_);
    WgmmaFence();
    IssueOutput(kv_ring_.stage);
    NamedBarrierSync(kReadBarrier + consumer_, kWarpgroupSize);
    WgmmaWait<0>();
    RegisterFence(o_);
    Release(kv_ring_);
    kv_ring_ = kv_ring_.Next();
    WriteOutput(tile, q_buffer, rows_);
  }

  // Writes the normalized output over the queries, from where a warp stores it,
  // and LSE.
  __device__ __forceinline__ void WriteOutput(const Work& tile, int q_buffer,
                                              const RowState& rows) {
    float sum[2], inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = rows.sum[r] + __shfl_xor_sync(~0u, rows.sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
      inverse[r] = Reciprocal(sum[r]);
    }
    const int lane = threadIdx.x % kWarpSize;
    const int row = threadIdx.x % kWarpgroupSize / kWarpSize * 16 +
                    lane / 8 % 2 * 8 + lane % 8;
    const uint32_t to = q_address_ + q_buffer * C::kQueryBytes + row * 128;
#pragma unroll
    for (int j = 0; j < C::kHeadDim / 8; j += 2) {
      const int chunk = j + lane / 16;
      StoreMatrix4(
          to + chunk / 8 * C::kBlockM * 128 + (chunk % 8 ^ row % 8) * 16,
          PackBfloat16(o_[4 * j] * inverse[0], o_[4 * j + 1] * inverse[0]),
          PackBfloat16(o_[4 * j + 2] * inverse[1], o_[4 * j + 3] * inverse[1]),
          PackBfloat16(o_[4 * j + 4] * inverse[0], o_[4 * j + 5] * inverse[0]),
          PackBfloat16(o_[4 * j + 6] * inverse[1], o_[4 * j + 7] * inverse[1]));
    }
    FenceSharedForAsync();
    NamedBarrierArrive(kOutputBarrier + 3 * consumer_ + q_buffer,
                       kWarpgroupSize + kWarpSize);
    // After the fence, which would wait for it.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int lse_row = ThreadRow(tile) + r * 8;
      if (lane % 4 == 0 && lse_row < tile.length) {
        p_.lse[tile.lse_start + lse_row] =
            (rows.reference[r] + Log2(sum[r])) * static_cast<float>(M_LN2);
      }
    }
  }

  const Params& p_;
  Barriers<C>& barriers_;
  const int consumer_;
  const uint32_t q_address_, kv_address_;
  Ring<C::kStages> kv_ring_;
  int next_block_, first_block_;
  bool is_first_;
  RowState rows_;
  float s_[C::kBlockN / 2];
  float o_[C::kHeadDim / 2];
  uint32_t probabilities_[C::kBlockN / 16][4];
};

}  // namespace millrace::attention_forward

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_FORWARD_CONSUMER_CUH_
