#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/attention_bf16.h"
#include "kernels/attention_bf16_paths.h"
#include "kernels/attention_bf16_shape.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/wgmma.cuh"

namespace millrace {
namespace {

using namespace hopper;  // NOLINT: its primitives read as part of the language.

// A block works on tiles of kBlockM queries (64 a consumer warpgroup) and walks
// over blocks of kBlockN keys. Measured on one H200: two consumers with 128
// keys are best for head dim 128, three for head dim 64.
template <int kHeadDim_, int kNumConsumers_, bool kCausal_>
struct Config {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kNumConsumers = kNumConsumers_;
  static constexpr bool kCausal = kCausal_;
  static constexpr int kBlockM = 64 * kNumConsumers;
  static constexpr int kBlockN = 128;
  static constexpr int kStages = 2;  // Of keys and of values.
  static constexpr int kColumnGroups = kHeadDim / 64;
  static constexpr int kQueryBytes = kBlockM * kHeadDim * 2;
  static constexpr int kKeyBytes = kBlockN * kHeadDim * 2;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kSharedBytes =
      1024 + 2 * kQueryBytes + 2 * kStages * kKeyBytes + kBarrierBytes;
  static constexpr int kNumThreads = kWarpgroupSize * (kNumConsumers + 1);
  // Per thread and warpgroup role; they sum to the register file at most.
  static constexpr int kProducerRegisters = kNumConsumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kNumConsumers == 2 ? 240 : 160;
};

struct Params {
  CUtensorMap q, k, v, o;
  float* lse;
  int* tile_counter;
  int sequence_length, num_heads, heads_per_kv;
  int num_query_blocks, num_tiles, heads_per_section;
  float scale, scale_log2;
};

struct Barriers {
  uint64_t q_full, q_empty;
  uint64_t k_full[2], k_empty[2], v_full[2], v_empty[2];
  int tile;  // Travels with q_full; below zero: no more.
};

// Named barriers: 0 is __syncthreads().
constexpr int kTurnBarrier = 1;   // + consumer: its turn on the tensor cores.
constexpr int kStoreBarrier = 5;  // + consumer: its output buffer.

struct Tile {
  int query_block, head, sequence, num_key_blocks;
};

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
  const int all = (p.sequence_length + C::kBlockN - 1) / C::kBlockN;
  const int visible =
      ((tile.query_block + 1) * C::kBlockM + C::kBlockN - 1) / C::kBlockN;
  tile.num_key_blocks = C::kCausal ? min(all, visible) : all;
  return tile;
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

// One thread feeds the block: queries of a tile once, keys one block ahead of
// values, since the scores of block i - 1 are computed before the output of
// block i (key blocks run from the last to the first).
template <typename C>
__device__ __forceinline__ void Produce(const Params& p, Barriers& barriers,
                                        uint8_t* shared_q, uint8_t* shared_k,
                                        uint8_t* shared_v) {
  PrefetchTensorMap(&p.q);
  PrefetchTensorMap(&p.k);
  PrefetchTensorMap(&p.v);
  PrefetchTensorMap(&p.o);
  Ring<C::kStages> ring{.parity = 1};
  int q_parity = 1;
  int idx = blockIdx.x;
  while (idx < p.num_tiles) {
    const Tile tile = TileAt<C>(p, idx);
    const int next_idx = atomicAdd(p.tile_counter, 1) + gridDim.x;
    const int kv_head = tile.head / p.heads_per_kv;
    auto load = [&](const CUtensorMap& map, uint8_t* shared, uint64_t* full,
                    uint64_t* empty, int block, Ring<C::kStages> at) {
      BarrierWait(&empty[at.stage], at.parity);
      BarrierArriveExpect(&full[at.stage], C::kKeyBytes);
      for (int group = 0; group < C::kColumnGroups; ++group) {
        LoadTensor4(shared + at.stage * C::kKeyBytes + group * C::kBlockN * 128,
                    &map, &full[at.stage], group * 64, block * C::kBlockN,
                    kv_head, tile.sequence, CachePolicy::kEvictLast);
      }
    };
    int block = tile.num_key_blocks - 1;
    load(p.k, shared_k, barriers.k_full, barriers.k_empty, block, ring);
    BarrierWait(&barriers.q_empty, q_parity);
    q_parity ^= 1;
    atomicExch(&barriers.tile, idx);
    BarrierArriveExpect(&barriers.q_full, C::kQueryBytes);
    for (int group = 0; group < C::kColumnGroups; ++group) {
      LoadTensor4(shared_q + group * C::kBlockM * 128, &p.q, &barriers.q_full,
                  group * 64, tile.query_block * C::kBlockM, tile.head,
                  tile.sequence, CachePolicy::kEvictFirst);
    }
    for (; block >= 0; --block) {
      if (block > 0) {
        load(p.k, shared_k, barriers.k_full, barriers.k_empty, block - 1,
             ring.Next());
      }
      load(p.v, shared_v, barriers.v_full, barriers.v_empty, block, ring);
      ring = ring.Next();
    }
    idx = next_idx;
  }
  BarrierWait(&barriers.q_empty, q_parity);
  atomicExch(&barriers.tile, -1);
  BarrierArrive(&barriers.q_full);
  // The last block to finish leaves the counters as it found them.
  if (atomicAdd(p.tile_counter + 1, 1) == static_cast<int>(gridDim.x) - 1) {
    p.tile_counter[0] = 0;
    p.tile_counter[1] = 0;
  }
}

// Running softmax of the two rows a thread shares with its quad.
struct RowState {
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};  // This thread's columns only.
  float rescale[2];             // What the last block did to older terms.
};

// Turns scores into exponentials and updates the rows. `masked` blocks may hold
// columns that a row must not see.
template <typename C>
__device__ __forceinline__ void SoftmaxBlock(const Params& p, int key_block,
                                             int first_row, bool masked,
                                             float (&s)[C::kBlockN / 2],
                                             RowState& rows) {
  const int lane = threadIdx.x % kWarpSize;
  if (masked) {
#pragma unroll
    for (int i = 0; i < C::kBlockN / 2; ++i) {
      const int column =
          key_block * C::kBlockN + i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int row = first_row + i / 2 % 2 * 8;
      if ((C::kCausal && column > row) || column >= p.sequence_length) {
        s[i] = -INFINITY;
      }
    }
  }
  float maximum[2] = {rows.maximum[0], rows.maximum[1]};
#pragma unroll
  for (int i = 0; i < C::kBlockN / 2; ++i) {
    maximum[i / 2 % 2] = fmaxf(maximum[i / 2 % 2], s[i]);
  }
  float base[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    maximum[r] = fmaxf(maximum[r], __shfl_xor_sync(~0u, maximum[r], 1));
    maximum[r] = fmaxf(maximum[r], __shfl_xor_sync(~0u, maximum[r], 2));
    // A row that has seen nothing yet keeps a finite base.
    const float finite = masked && maximum[r] == -INFINITY ? 0.0f : maximum[r];
    base[r] = finite * p.scale_log2;
    rows.rescale[r] = Exp2(rows.maximum[r] * p.scale_log2 - base[r]);
    rows.maximum[r] = maximum[r];
    rows.sum[r] *= rows.rescale[r];
  }
#pragma unroll
  for (int i = 0; i < C::kBlockN / 2; ++i) {
    s[i] = Exp2(fmaf(s[i], p.scale_log2, -base[i / 2 % 2]));
  }
#pragma unroll
  for (int i = 0; i < C::kBlockN / 2; ++i) rows.sum[i / 2 % 2] += s[i];
}

// Normalizes the output, writes it by way of shared memory, and writes LSE.
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
    for (int group = 0; group < C::kColumnGroups; ++group) {
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
  const uint32_t q_address = SharedAddress(shared_q) + consumer * 64 * 128;
  const uint32_t k_address = SharedAddress(shared_k);
  const uint32_t v_address = SharedAddress(shared_v);
  float s[C::kBlockN / 2];
  float o[C::kHeadDim / 2];
  uint32_t probabilities[C::kBlockN / 16][4];
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
    const uint32_t keys = k_address + stage * C::kKeyBytes;
#pragma unroll
    for (int k = 0; k < C::kHeadDim / 16; ++k) {
      MultiplyShared<C::kBlockN, false, false>(
          s,
          SwizzledDescriptor(q_address + k / 4 * C::kBlockM * 128 + k % 4 * 32,
                             0),
          SwizzledDescriptor(keys + k / 4 * C::kBlockN * 128 + k % 4 * 32, 0),
          k != 0);
    }
    WgmmaCommit();
  };
  auto issue_output = [&](int stage, bool first) {
    const uint32_t values = v_address + stage * C::kKeyBytes;
#pragma unroll
    for (int k = 0; k < C::kBlockN / 16; ++k) {
      MultiplyRegisters<C::kHeadDim, true>(
          o, probabilities[k],
          SwizzledDescriptor(values + k * 2048, C::kBlockN * 128),
          !(first && k == 0));
    }
    WgmmaCommit();
  };
  auto pack = [&] {
#pragma unroll
    for (int k = 0; k < C::kBlockN / 16; ++k) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        probabilities[k][r] =
            PackBfloat16(s[8 * k + 2 * r], s[8 * k + 2 * r + 1]);
      }
    }
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
    RowState rows;

    int block = tile.num_key_blocks - 1;
    BarrierWait(&barriers.k_full[ring.stage], ring.parity);
    wait_for_turn();
    WgmmaFence();
    issue_scores(ring.stage);
    WgmmaWait<0>();
    pass_turn();
    RegisterFence(s);
    if (leader) BarrierArrive(&barriers.k_empty[ring.stage]);
    SoftmaxBlock<C>(p, block, first_row, true, s, rows);
    pack();
    bool first = true;
    auto step = [&](int next_block, bool masked) {
      const Ring<C::kStages> next = ring.Next();
      BarrierWait(&barriers.k_full[next.stage], next.parity);
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
      SoftmaxBlock<C>(p, next_block, first_row, masked, s, rows);
      WgmmaWait<0>();
      RegisterFence(o);
      if (leader) BarrierArrive(&barriers.v_empty[ring.stage]);
      pack();
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 2; ++i) o[i] *= rows.rescale[i / 2 % 2];
      ring = next;
    };
    --block;
    if constexpr (C::kCausal) {
      const int first_tile_row = tile.query_block * C::kBlockM;
      for (; block >= 0 && (block + 1) * C::kBlockN - 1 > first_tile_row;
           --block) {
        step(block, true);
      }
    }
#pragma unroll 1
    for (; block >= 0; --block) step(block, false);
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
      inverse[r] = 1.0f / sum;
      const int row = first_row + r * 8;
      if (lane % 4 == 0 && row < p.sequence_length) {
        p.lse[(static_cast<int64_t>(tile.sequence) * p.num_heads + tile.head) *
                  p.sequence_length +
              row] = rows.maximum[r] * p.scale + logf(sum);
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

// One block a multiprocessor for the whole launch: a producer and its
// consumers. Limited by the tensor cores, and for short sequences by
// exponentials.
template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    AttentionForwardKernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t unaligned_shared[];
  // Swizzled tiles start at multiples of 1024 bytes.
  uint8_t* shared_q = reinterpret_cast<uint8_t*>(
      (reinterpret_cast<uintptr_t>(unaligned_shared) + 1023) &
      ~uintptr_t{1023});
  uint8_t* shared_o = shared_q + C::kQueryBytes;
  uint8_t* shared_k = shared_o + C::kQueryBytes;
  uint8_t* shared_v = shared_k + C::kStages * C::kKeyBytes;
  Barriers& barriers =
      *reinterpret_cast<Barriers*>(shared_v + C::kStages * C::kKeyBytes);
  static_assert(sizeof(Barriers) <= C::kBarrierBytes);

  if (threadIdx.x == 0) {
    BarrierInit(&barriers.q_full, 1);
    BarrierInit(&barriers.q_empty,
                C::kNumConsumers * kWarpgroupSize / kWarpSize);
    for (int stage = 0; stage < C::kStages; ++stage) {
      BarrierInit(&barriers.k_full[stage], 1);
      BarrierInit(&barriers.v_full[stage], 1);
      BarrierInit(&barriers.k_empty[stage], C::kNumConsumers);
      BarrierInit(&barriers.v_empty[stage], C::kNumConsumers);
    }
    BarrierInitFence();
  }
  __syncthreads();

  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ShrinkRegisters<C::kProducerRegisters>();
    if (threadIdx.x == 0) {
      Produce<C>(p, barriers, shared_q, shared_k, shared_v);
    }
  } else {
    GrowRegisters<C::kConsumerRegisters>();
    Consume<C>(p, barriers, warpgroup - 1, shared_q, shared_k, shared_v,
               shared_o);
  }
}

// Heads whose keys and values (32 MiB of them) stay in the L2 cache together.
int HeadsPerSection(const AttentionBf16Shape& shape) {
  constexpr int64_t kCacheBytes = int64_t{32} << 20;
  const int64_t num_heads = shape.num_sequences * shape.num_heads;
  const int64_t bytes_per_head = shape.sequence_length * shape.head_dim * 4 /
                                 (shape.num_heads / shape.num_kv_heads);
  int heads = 1;
  while (2 * heads * bytes_per_head <= kCacheBytes &&
         num_heads % (2 * heads) == 0) {
    heads *= 2;
  }
  return heads;
}

template <typename C>
absl::Status Launch(const AttentionForwardBf16Args& args, cudaStream_t stream) {
  const AttentionBf16Shape& shape = args.shape;
  ASSIGN_OR_RETURN(const int num_multiprocessors, NumHopperMultiprocessors());
  Params p;
  ASSIGN_OR_RETURN(p.q, OperandMap(args.q, shape.num_heads, shape, C::kBlockM));
  ASSIGN_OR_RETURN(p.k,
                   OperandMap(args.k, shape.num_kv_heads, shape, C::kBlockN));
  ASSIGN_OR_RETURN(p.v,
                   OperandMap(args.v, shape.num_kv_heads, shape, C::kBlockN));
  ASSIGN_OR_RETURN(p.o, OperandMap(args.o, shape.num_heads, shape, 64));
  p.lse = args.lse;
  p.tile_counter = args.tile_counter;
  p.sequence_length = static_cast<int>(shape.sequence_length);
  p.num_heads = static_cast<int>(shape.num_heads);
  p.heads_per_kv = static_cast<int>(shape.num_heads / shape.num_kv_heads);
  p.num_query_blocks = (p.sequence_length + C::kBlockM - 1) / C::kBlockM;
  p.num_tiles =
      p.num_query_blocks * p.num_heads * static_cast<int>(shape.num_sequences);
  p.heads_per_section = HeadsPerSection(shape);
  p.scale = 1.0f / std::sqrt(static_cast<float>(C::kHeadDim));
  p.scale_log2 = p.scale * static_cast<float>(M_LOG2E);
  const auto kernel = AttentionForwardKernel<C>;
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), C::kSharedBytes));
  kernel<<<std::min(num_multiprocessors, p.num_tiles), C::kNumThreads,
           C::kSharedBytes, stream>>>(p);
  return CudaStatus(cudaGetLastError(), "launch AttentionForwardBf16");
}

}  // namespace

bool AttentionForwardBf16Sm90Takes(const AttentionBf16Shape& shape) {
  return (shape.head_dim == 64 || shape.head_dim == 128) && shape.window == 0 &&
         shape.document_offsets == nullptr;
}

absl::Status LaunchAttentionForwardBf16Sm90(
    const AttentionForwardBf16Args& args, cudaStream_t stream) {
  if (!AttentionForwardBf16Sm90Takes(args.shape)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the forward pass of bf16 attention has head_dim 64 and 128, and "
        "neither window nor packed documents, yet; got head_dim ",
        args.shape.head_dim, " and window ", args.shape.window));
  }
  if (args.shape.head_dim == 128) {
    return args.shape.causal ? Launch<Config<128, 2, true>>(args, stream)
                             : Launch<Config<128, 2, false>>(args, stream);
  }
  return args.shape.causal ? Launch<Config<64, 3, true>>(args, stream)
                           : Launch<Config<64, 3, false>>(args, stream);
}

}  // namespace millrace
