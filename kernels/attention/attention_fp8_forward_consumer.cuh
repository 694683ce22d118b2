// The fp8 attention forward kernel: its operands, its tiles and their order,
// and the consumer, one of a block's two roles. The producer stands beside the
// kernel, in attention_fp8_forward_sm90.cu.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_FORWARD_CONSUMER_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_FORWARD_CONSUMER_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/attention/attention_fp8.h"
#include "kernels/attention/attention_fp8_shape.h"
#include "kernels/attention/attention_fp8_softmax.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/cuda/wgmma_fp8.cuh"

namespace millrace::attention_fp8_forward {

using namespace hopper;  // NOLINT: its primitives read as part of the language.

// A block works on tiles of 128 queries (64 a consumer warpgroup) and walks
// over blocks of kFp8KeyBlock keys.
template <int kHeadDim_, bool kCausal_, bool kDocuments_ = false>
struct Config {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kCausal = kCausal_;
  // Keys begin at the row's document; causal only.
  static constexpr bool kDocuments = kDocuments_;
  static_assert(kCausal || !kDocuments);
  static constexpr int kNumConsumers = 2;
  static constexpr int kBlockM = kFp8QueryBlock;
  static_assert(kBlockM == 64 * kNumConsumers);
  static constexpr int kBlockN = kFp8KeyBlock;
  // The number of a thread's scores that turn into exponentials before the wait
  // for the output: whole operands of 16.
  static constexpr int kPart = kBlockN / 64 * 16;
  // The number of polynomials in every eight exponentials.
  static constexpr int kPolynomialEighths = 2;
  static constexpr int kStages = 2;  // For keys and for values.
  static constexpr int kQueryBytes = kBlockM * kHeadDim;
  static constexpr int kOutputBytes = kBlockM * kHeadDim * 2;
  static constexpr int kKeyBytes = kBlockN * kHeadDim;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kSharedBytes =
      kQueryBytes + kOutputBytes + 2 * kStages * kKeyBytes + kBarrierBytes;
  static constexpr int kNumThreads = kWarpgroupSize * (kNumConsumers + 1);
  // Per thread and warpgroup role; they sum to the register file at most.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
};

struct Params {
  CUtensorMap q, k, o;
  const uint8_t* v;
  const float *q_scale, *k_scale, *v_scale;
  float* lse;
  int64_t lse_sequence_stride, lse_head_stride;
  const int* document_starts;  // With kDocuments.
  int* tile_counter;
  int sequence_length, num_heads, heads_per_kv;
  int num_query_blocks, num_key_blocks, num_tiles, heads_per_section;
  float scale_log2;
};

struct Barriers {
  uint64_t q_full, q_empty;
  uint64_t k_full[2], k_empty[2], v_full[2], v_empty[2];
  int tile;  // Travels with q_full; below zero: no more.
};

// Named barriers: 0 is __syncthreads().
inline constexpr int kTurnBarrier =
    1;  // + consumer: its turn on the tensor cores.
inline constexpr int kStoreBarrier = 5;  // + consumer: its output buffer.

// Its keys are blocks [first_key_block, num_key_blocks).
struct Tile {
  int query_block, head, sequence, first_key_block, num_key_blocks;
};

// Where the document of a row of the tile's sequence starts; rows behind the
// sequence count as its last.
__device__ __forceinline__ int DocumentStart(const Params& p, const Tile& tile,
                                             int row) {
  return p.document_starts[tile.sequence * p.sequence_length +
                           min(row, p.sequence_length - 1)];
}

// Tiles in the order of work: sections of heads whose keys and values fit the
// L2 cache together; in a section the longest first, so that the last tiles to
// be handed out are short.
template <typename C>
__device__ __forceinline__ Tile TileAt(const Params& p, int idx) {
  const int tiles_per_section = p.heads_per_section * p.num_query_blocks;
  const int section = idx / tiles_per_section;
  const int in_section = idx - section * tiles_per_section;
  const int position = in_section / p.heads_per_section;
  const int head = section * p.heads_per_section + in_section -
                   position * p.heads_per_section;
  Tile tile;
  tile.query_block = C::kCausal ? p.num_query_blocks - 1 - position : position;
  tile.head = head % p.num_heads;
  tile.sequence = head / p.num_heads;
  const int visible =
      ((tile.query_block + 1) * C::kBlockM + C::kBlockN - 1) / C::kBlockN;
  tile.num_key_blocks =
      C::kCausal ? min(p.num_key_blocks, visible) : p.num_key_blocks;
  tile.first_key_block = 0;
  if constexpr (C::kDocuments) {
    // Starts rise with the rows.
    tile.first_key_block =
        DocumentStart(p, tile, tile.query_block * C::kBlockM) / C::kBlockN;
  }
  return tile;
}

// The first key block of a tile's head, counted over all heads.
__device__ __forceinline__ int FirstKeyBlock(const Params& p,
                                             const Tile& tile) {
  return (tile.sequence * (p.num_heads / p.heads_per_kv) +
          tile.head / p.heads_per_kv) *
         p.num_key_blocks;
}

// Value scales count as no less than 2^kLeastUnit.
inline constexpr int kLeastUnit = -120;

// The least whole number whose power of two is no less than x > 0.
__device__ __forceinline__ int CeilLog2(float x) {
  return ((__float_as_int(x) + 0x7FFFFF) >> 23) - 127;
}
__device__ __forceinline__ float PowerOfTwo(int exponent) {
  return __int_as_float((exponent + 127) << 23);
}

// Position in a ring of stages.
template <int kStages>
struct Ring {
  int stage = 0;
  int parity;
  __device__ __forceinline__ Ring Next() const {
    return stage + 1 == kStages ? Ring{0, parity ^ 1} : Ring{stage + 1, parity};
  }
};

// Normalizes the output, writes it by way of shared memory.
template <typename C>
__device__ __forceinline__ void WriteTile(const Params& p, const Tile& tile,
                                          int consumer, uint8_t* shared_o,
                                          float (&o)[C::kHeadDim / 2],
                                          const float (&inverse)[2]) {
  const int thread = threadIdx.x % kWarpgroupSize;
  const int lane = thread % kWarpSize;
  const bool leader = thread == 0;
  // The previous tile's store must have read the buffer.
  if (leader) WaitStoresRead<0>();
  NamedBarrierSync(kStoreBarrier + consumer, kWarpgroupSize);
#pragma unroll
  for (int j = 0; j < C::kHeadDim / 8; j += 2) {
    const int row = thread / kWarpSize * 16 + lane / 8 % 2 * 8 + lane % 8;
    const int chunk = j + lane / 16;
    StoreMatrix4(
        SharedAddress(shared_o) + chunk / 8 * 64 * 128 + row * 128 +
            (chunk % 8 ^ row % 8) * 16,
        PackBfloat16(o[4 * j] * inverse[0], o[4 * j + 1] * inverse[0]),
        PackBfloat16(o[4 * j + 2] * inverse[1], o[4 * j + 3] * inverse[1]),
        PackBfloat16(o[4 * j + 4] * inverse[0], o[4 * j + 5] * inverse[0]),
        PackBfloat16(o[4 * j + 6] * inverse[1], o[4 * j + 7] * inverse[1]));
  }
  FenceSharedForAsync();
  NamedBarrierSync(kStoreBarrier + consumer, kWarpgroupSize);
  if (leader) {
    for (int group = 0; group < C::kHeadDim / 64; ++group) {
      StoreTensor4(&p.o, shared_o + group * 64 * 128, group * 64,
                   tile.query_block * C::kBlockM + consumer * 64, tile.head,
                   tile.sequence);
    }
    CommitStores();
  }
}

// One consumer warpgroup: 64 query rows of every tile. While one consumer is in
// its softmax another has its turn on the tensor cores, and within a consumer
// the scores of the next block are computed together with the output of this.
template <typename C>
__device__ __forceinline__ void Consume(const Params& p, Barriers& barriers,
                                        int consumer, uint8_t* shared_q,
                                        uint8_t* shared_k, uint8_t* shared_v,
                                        uint8_t* shared_o) {
  const int thread = threadIdx.x % kWarpgroupSize;
  const int lane = thread % kWarpSize;
  const bool leader = thread == 0;
  const uint64_t q_descriptor = Fp8RowsDescriptor<C::kHeadDim>(
      SharedAddress(shared_q) + consumer * 64 * C::kHeadDim);
  const uint64_t k_descriptor =
      Fp8RowsDescriptor<C::kHeadDim>(SharedAddress(shared_k));
  const uint64_t v_descriptor = Fp8PackedDescriptor(SharedAddress(shared_v));
  float s[C::kBlockN / 2];
  float o[C::kHeadDim / 2];
  uint32_t probabilities[C::kBlockN / 32][4];
  Ring<C::kStages> ring{.parity = 0};
  int q_parity = 0;

  auto wait_for_turn = [&] {
    NamedBarrierSync(kTurnBarrier + consumer, 2 * kWarpgroupSize);
  };
  auto pass_turn = [&] {
    NamedBarrierArrive(kTurnBarrier + (consumer + 1) % C::kNumConsumers,
                       2 * kWarpgroupSize);
  };
  if (consumer == C::kNumConsumers - 1) pass_turn();  // Consumer 0 begins.

  auto issue_scores = [&](int stage) {
    const uint64_t keys = AdvanceDescriptor(k_descriptor, stage * C::kKeyBytes);
#pragma unroll
    for (int k = 0; k < C::kHeadDim / 32; ++k) {
      MultiplySharedFp8<C::kBlockN>(s, AdvanceDescriptor(q_descriptor, k * 32),
                                    AdvanceDescriptor(keys, k * 32), k != 0);
    }
    WgmmaCommit();
  };
  auto issue_output = [&](int stage, bool first) {
    const uint64_t values =
        AdvanceDescriptor(v_descriptor, stage * C::kKeyBytes);
#pragma unroll
    for (int k = 0; k < C::kBlockN / 32; ++k) {
      MultiplyRegistersFp8<C::kHeadDim>(
          o, probabilities[k], AdvanceDescriptor(values, k * 32 * C::kHeadDim),
          !(first && k == 0));
    }
    WgmmaCommit();
  };

  while (true) {
    BarrierWait(&barriers.q_full, q_parity);
    q_parity ^= 1;
    // One lane a warp reads, and the same lane frees the queries later; the
    // shuffle also tells the compiler that all lanes agree. The atomics order
    // nothing (the barriers do), but race checkers do not know these barriers.
    int idx = 0;
    if (lane == 0) idx = atomicAdd(&barriers.tile, 0);
    idx = __shfl_sync(~0u, idx, 0);
    if (idx < 0) break;
    const Tile tile = TileAt<C>(p, idx);
    const int first_row = tile.query_block * C::kBlockM + consumer * 64 +
                          thread / kWarpSize * 16 + lane / 4;
    const int first_key_block = FirstKeyBlock(p, tile);
    const float* k_scale = p.k_scale + first_key_block;
    const float* v_scale = p.v_scale + first_key_block;
    const float q_factor =
        p.scale_log2 * p.q_scale[(tile.sequence * p.num_heads + tile.head) *
                                     p.num_query_blocks +
                                 tile.query_block];
    // The first keys of this thread's rows and of the tile's last row.
    int first_seen[2] = {0, 0};
    int last_start = 0;
    if constexpr (C::kDocuments) {
      first_seen[0] = DocumentStart(p, tile, first_row);
      first_seen[1] = DocumentStart(p, tile, first_row + 8);
      last_start = DocumentStart(p, tile, (tile.query_block + 1) * C::kBlockM);
    }
    fp8::RowState rows;
    // The output is kept in units of a power of two that is no less than any
    // value scale so far, so that it seldom changes.
    int unit = kLeastUnit;
    auto scale_of = [&](int key_block) {
      const float value_scale = v_scale[key_block];
      unit = max(unit, CeilLog2(value_scale));
      return fp8::BlockScale{
          .factor = q_factor * k_scale[key_block],
          .weight = fmaxf(value_scale * PowerOfTwo(-unit), fp8::kLeastWeight)};
    };
    // Scores in s to exponentials in `probabilities`.
    auto softmax = [&](const fp8::BlockScale& scale, const auto& between) {
      return fp8::SoftmaxBlock<C::kPart, C::kPolynomialEighths>(
          scale, s, rows, probabilities, between);
    };
    auto mask = [&](int key_block) {
      fp8::Mask<C::kCausal>(key_block * C::kBlockN, first_row,
                            p.sequence_length, s);
      if constexpr (C::kDocuments) {
        fp8::MaskBefore(key_block * C::kBlockN, first_seen, s);
      }
    };
    auto wait_for_keys = [&](const Ring<C::kStages>& at) {
      BarrierWait(&barriers.k_full[at.stage], at.parity);
    };

    int block = tile.num_key_blocks - 1;
    {
      const fp8::BlockScale scale = scale_of(block);
      wait_for_keys(ring);
      wait_for_turn();
      WgmmaFence();
      issue_scores(ring.stage);
      WgmmaWait<0>();
      pass_turn();
      RegisterFence(s);
      if (leader) BarrierArrive(&barriers.k_empty[ring.stage]);
      if (C::kCausal || (block + 1) * C::kBlockN > p.sequence_length) {
        mask(block);
      }
      softmax(scale, [&] {
        if (block > tile.first_key_block) wait_for_keys(ring.Next());
      });
    }
    bool first = true;
    auto step = [&](int next_block, bool masked) {
      const Ring<C::kStages> next = ring.Next();
      const int old_unit = unit;
      const fp8::BlockScale scale = scale_of(next_block);
      wait_for_turn();
      RegisterFence(s);
      RegisterFence(o);
      WgmmaFence();
      issue_scores(next.stage);
      BarrierWait(&barriers.v_full[ring.stage], ring.parity);
      issue_output(ring.stage, first);
      first = false;
      pass_turn();
      WgmmaWait<1>();
      RegisterFence(s);
      if (leader) BarrierArrive(&barriers.k_empty[next.stage]);
      if (masked) mask(next_block);
      // The next keys are awaited inside the softmax: the loop in that wait
      // keeps ptxas from moving all exponentials behind the wait for the
      // output.
      const fp8::Rescale rescale = softmax(scale, [&] {
        if (next_block > tile.first_key_block) wait_for_keys(next.Next());
        WgmmaWait<0>();
        RegisterFence(o);
        if (leader) BarrierArrive(&barriers.v_empty[ring.stage]);
      });
      if (__any_sync(~0u, rescale.row[0] != 1.0f || rescale.row[1] != 1.0f ||
                              unit != old_unit)) {
        const float change = PowerOfTwo(max(old_unit - unit, -126));
#pragma unroll
        for (int i = 0; i < C::kHeadDim / 2; ++i) {
          o[i] *= rescale.row[i / 2 % 2] * change;
        }
      }
      ring = next;
    };
    --block;
    const int first_tile_row = tile.query_block * C::kBlockM;
    if constexpr (C::kDocuments) {
#pragma unroll 1
      for (; block >= tile.first_key_block; --block) {
        step(block, (block + 1) * C::kBlockN - 1 > first_tile_row ||
                        block * C::kBlockN < last_start);
      }
    } else if constexpr (C::kCausal) {
      for (; block >= 0 && (block + 1) * C::kBlockN - 1 > first_tile_row;
           --block) {
        step(block, true);
      }
    }
#pragma unroll 1
    for (; block >= tile.first_key_block; --block) step(block, false);
    __syncwarp();
    if (lane == 0) BarrierArrive(&barriers.q_empty);

    BarrierWait(&barriers.v_full[ring.stage], ring.parity);
    RegisterFence(o);
    WgmmaFence();
    issue_output(ring.stage, first);
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = rows.sum[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse[r] = PowerOfTwo(unit) / sum;
      const int row = first_row + r * 8;
      if (lane % 4 == 0 && row < p.sequence_length) {
        p.lse[tile.sequence * p.lse_sequence_stride +
              tile.head * p.lse_head_stride + row] =
            (rows.maximum[r] - fp8::kExponentOffset + log2f(sum)) *
            static_cast<float>(M_LN2);
      }
    }
    WgmmaWait<0>();
    RegisterFence(o);
    if (leader) BarrierArrive(&barriers.v_empty[ring.stage]);
    ring = ring.Next();
    WriteTile<C>(p, tile, consumer, shared_o + consumer * 64 * C::kHeadDim * 2,
                 o, inverse);
  }
  if (leader) WaitStores<0>();
}

}  // namespace millrace::attention_fp8_forward

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_FORWARD_CONSUMER_CUH_
