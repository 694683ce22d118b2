#include <algorithm>

#include "base/status_macros.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_bf16_forward_consumer.cuh"
#include "kernels/attention/attention_bf16_forward_tile.cuh"
#include "kernels/attention/attention_bf16_paths.h"
#include "kernels/attention/attention_bf16_shape.h"
#include "kernels/cuda/amax.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/status.h"
#include "kernels/tuning/tuned_choice.h"

namespace millrace {
namespace {

using namespace attention_forward;  // NOLINT: the vocabulary of this kernel.

// A block works on tiles of kBlockM queries (64 a consumer warpgroup) and walks
// over blocks of kBlockN keys.
template <int kHeadDim_, int kNumConsumers_, int kBlockN_, Visible kVisible_,
          int kStages_>
struct Config {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kNumConsumers = kNumConsumers_;
  static constexpr Visible kVisible = kVisible_;
  static constexpr int kBlockM = 64 * kNumConsumers;
  static constexpr int kBlockN = kBlockN_;
  static constexpr int kStages = kStages_;  // For keys and values, in turns.
  // Groups of 64 columns; the columns beyond head dim 96 arrive as zeros.
  static constexpr int kColumnGroups = (kHeadDim + 63) / 64;
  // With two a tile begins while the last one ends. A tile's output leaves by
  // way of its queries' buffer; tiles of one block of keys cannot wait for that
  // and want a third.
  static constexpr int kMostQueryBuffers = kVisible == Visible::kAll ? 2 : 3;
  static constexpr int kQueryBuffers = kHeadDim > 128 ? 1 : kMostQueryBuffers;
  static constexpr int kQueryBytes = kBlockM * kColumnGroups * 128;
  static constexpr int kKeyBytes = kBlockN * kColumnGroups * 128;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kSharedBytes =
      1024 + kQueryBuffers * kQueryBytes + kStages * kKeyBytes + kBarrierBytes;
  static constexpr int kNumThreads = kWarpgroupSize * (kNumConsumers + 1);
  // Per thread and warpgroup role; they sum to the register file at most.
  static constexpr int kProducerRegisters = kNumConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kNumConsumers == 2 ? 232 : 160;
};

// One warp feeds the block, its first lane talking to the copy engine. Keys
// come one block ahead of values, since the scores of block i - 1 are computed
// together with the output of block i; that holds across tiles.
template <typename C>
__device__ __forceinline__ void Produce(const Params& p, Barriers<C>& barriers,
                                        const Shared& shared) {
  const bool leader = threadIdx.x == 0;
  if (leader) {
    PrefetchTensorMap(&p.q);
    PrefetchTensorMap(&p.k);
    PrefetchTensorMap(&p.v);
    PrefetchTensorMap(&p.o);
  }
  Ring<C::kStages> kv_ring{.parity = 1};
  Ring<C::kQueryBuffers> q_ring{.parity = 1};
  auto load_queries = [&](const Tile& tile) {
    if (leader) {
      uint64_t* full = &barriers.q_full[q_ring.stage];
      BarrierWait(&barriers.q_empty[q_ring.stage], q_ring.parity);
      int* fields = barriers.tile[q_ring.stage];
      atomicExch(&fields[0], tile.sequence);
      atomicExch(&fields[1], tile.first_token);
      atomicExch(&fields[2], tile.head);
      atomicExch(&fields[3], tile.first_row);
      atomicExch(&fields[4], tile.length);
      if (tile.length == 0) {
        BarrierArrive(full);
      } else {
        BarrierArriveExpect(full, C::kQueryBytes);
        for (int group = 0; group < C::kColumnGroups; ++group) {
          LoadTensor4(shared.q + q_ring.stage * C::kQueryBytes +
                          group * C::kBlockM * 128,
                      &p.q, full, group * 64, tile.first_token + tile.first_row,
                      tile.head, tile.sequence, CachePolicy::kEvictFirst);
        }
      }
    }
    q_ring = q_ring.Next();
  };
  auto load_block = [&](const CUtensorMap& map, const Tile& tile, int block) {
    if (leader) {
      uint64_t* full = &barriers.kv_full[kv_ring.stage];
      BarrierWait(&barriers.kv_empty[kv_ring.stage], kv_ring.parity);
      BarrierArriveExpect(full, C::kKeyBytes);
      const int kv_head = tile.head / p.heads_per_kv;
      for (int group = 0; group < C::kColumnGroups; ++group) {
        LoadTensor4(
            shared.kv + kv_ring.stage * C::kKeyBytes + group * C::kBlockN * 128,
            &map, full, group * 64, tile.first_token + block * C::kBlockN,
            kv_head, tile.sequence, CachePolicy::kEvictLast);
      }
    }
    kv_ring = kv_ring.Next();
  };
  auto load_first_keys = [&](const Tile& tile) {
    if (tile.length == 0) return;
    load_block(p.k, tile, KeyBlocksOf<C>(p, tile.first_row, tile.length).last);
  };

  TileScheduler<C> scheduler(p);
  Tile tile = scheduler.First();
  load_queries(tile);
  load_first_keys(tile);
  while (tile.length != 0) {
    const KeyBlocks blocks = KeyBlocksOf<C>(p, tile.first_row, tile.length);
    Tile next;
    for (int block = blocks.last; block >= blocks.first; --block) {
      // Late, so that no block holds tiles others could begin, but not too late
      // to hide the search.
      if (block == min(blocks.first + 1, blocks.last)) next = scheduler.Next();
      if (block > blocks.first) {
        load_block(p.k, tile, block - 1);
      } else if constexpr (C::kQueryBuffers > 1) {
        load_queries(next);
        load_first_keys(next);
      }
      load_block(p.v, tile, block);
      __syncwarp();
    }
    if constexpr (C::kQueryBuffers == 1) {
      load_first_keys(next);
      load_queries(next);
    }
    tile = next;
  }
  // The last block to finish leaves the counters as it found them.
  if (leader && p.tile_counter != nullptr &&
      atomicAdd(p.tile_counter + 1, 1) == static_cast<int>(gridDim.x) - 1) {
    p.tile_counter[0] = 0;
    p.tile_counter[1] = 0;
  }
}

// Element chunk `chunk` of eight of row `row` of a consumer's outputs.
template <typename C>
__device__ __forceinline__ uint4 OutputChunk(const uint8_t* o, int row,
                                             int chunk) {
  return *reinterpret_cast<const uint4*>(o + chunk / 8 * C::kBlockM * 128 +
                                         row * 128 +
                                         (chunk % 8 ^ row % 8) * 16);
}

// One warp a consumer takes its outputs from shared memory to their place and
// then frees the queries' buffer. It has time to look for the largest of them.
template <typename C>
__device__ __forceinline__ void StoreOutputs(const Params& p,
                                             Barriers<C>& barriers,
                                             const Shared& shared,
                                             int consumer) {
  constexpr int kChunks = C::kHeadDim / 8;
  const int lane = threadIdx.x % kWarpSize;
  uint32_t largest = 0;
  Ring<C::kQueryBuffers> q_ring;
  while (true) {
    const Tile tile = AwaitTile<C>(barriers, q_ring);
    if (tile.length == 0) break;
    const uint8_t* o =
        shared.q + q_ring.stage * C::kQueryBytes + consumer * 64 * 128;
    const int first_row = tile.first_row + consumer * 64;
    const int num_rows = min(tile.length - first_row, 64);
    NamedBarrierSync(kOutputBarrier + 3 * consumer + q_ring.stage,
                     kWarpgroupSize + kWarpSize);
    if (p.document_offsets == nullptr || num_rows == 64) {
      if (lane == 0) {
        for (int group = 0; group < C::kColumnGroups; ++group) {
          StoreTensor4(&p.o, o + group * C::kBlockM * 128, group * 64,
                       tile.first_token + first_row, tile.head, tile.sequence);
        }
        CommitStores();
      }
    } else {
      // The rows after these belong to the next document.
      for (int i = lane; i < num_rows * kChunks; i += kWarpSize) {
        const int row = i / kChunks;
        const int chunk = i % kChunks;
        *reinterpret_cast<uint4*>(
            p.o_rows + (tile.first_token + first_row + row) * p.o_token_stride +
            tile.head * p.o_head_stride + chunk * 8) =
            OutputChunk<C>(o, row, chunk);
      }
    }
    if (p.amax != nullptr) {
#pragma unroll 4
      for (int i = lane; i < num_rows * kChunks; i += kWarpSize) {
        largest = gpu::LargerPair(largest,
                                  OutputChunk<C>(o, i / kChunks, i % kChunks));
      }
    }
    if (lane == 0) WaitStoresRead<0>();
    __syncwarp();
    if (lane == 0) BarrierArrive(&barriers.q_empty[q_ring.stage]);
    q_ring = q_ring.Next();
  }
  if (p.amax != nullptr) gpu::RaiseAmaxOfWarp(p.amax, largest);
  if (lane == 0) WaitStores<0>();
}

// One block a multiprocessor for the whole launch: a producer, consumers, and
// warps that store. Limited by the tensor cores, and for short heads by
// exponentials.
template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    AttentionForwardKernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t unaligned_shared[];
  // Swizzled tiles start at multiples of 1024 bytes.
  Shared shared;
  shared.q = reinterpret_cast<uint8_t*>(
      (reinterpret_cast<uintptr_t>(unaligned_shared) + 1023) &
      ~uintptr_t{1023});
  shared.kv = shared.q + C::kQueryBuffers * C::kQueryBytes;
  auto& barriers =
      *reinterpret_cast<Barriers<C>*>(shared.kv + C::kStages * C::kKeyBytes);
  static_assert(sizeof(barriers) <= C::kBarrierBytes);

  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < C::kQueryBuffers; ++buffer) {
      BarrierInit(&barriers.q_full[buffer], 1);
      BarrierInit(&barriers.q_empty[buffer], C::kNumConsumers);
    }
    for (int stage = 0; stage < C::kStages; ++stage) {
      BarrierInit(&barriers.kv_full[stage], 1);
      BarrierInit(&barriers.kv_empty[stage], C::kNumConsumers);
    }
    BarrierInitFence();
  }
  __syncthreads();

  const int warp = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0);
  if (warp < kWarpgroupSize / kWarpSize) {
    ShrinkRegisters<C::kProducerRegisters>();
    if (warp == 0) {
      Produce<C>(p, barriers, shared);
    } else if (warp <= C::kNumConsumers) {
      StoreOutputs<C>(p, barriers, shared, warp - 1);
    }
  } else {
    GrowRegisters<C::kConsumerRegisters>();
    Consumer<C>(p, barriers, shared, warp / (kWarpgroupSize / kWarpSize) - 1)
        .Run();
  }
}

// The choices of the tuning family "attention_forward".
struct Choice {
  int64_t num_consumers;
  int64_t num_heads;  // At once.
  bool splits;
};

template <typename C>
absl::Status Launch(const AttentionForwardBf16Args& args, const Choice& choice,
                    cudaStream_t stream) {
  ASSIGN_OR_RETURN(const int num_multiprocessors, NumHopperMultiprocessors());
  ASSIGN_OR_RETURN(const Params p, ParamsOf<C>(args, choice.num_heads));
  const auto kernel = AttentionForwardKernel<C>;
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), C::kSharedBytes));
  kernel<<<std::min(num_multiprocessors, p.num_tiles), C::kNumThreads,
           C::kSharedBytes, stream>>>(p);
  return CudaStatus(cudaGetLastError(), "launch AttentionForwardBf16");
}

template <Visible kVisible>
absl::Status LaunchHeadDim(const AttentionForwardBf16Args& args,
                           const Choice& choice, cudaStream_t stream) {
  switch (args.shape.head_dim) {
    case 64:
      return choice.num_consumers == 2
                 ? Launch<Config<64, 2, 128, kVisible, 8>>(args, choice, stream)
                 : Launch<Config<64, 3, 128, kVisible, 8>>(args, choice,
                                                           stream);
    case 96:
      return Launch<Config<96, 2, 128, kVisible, 4>>(args, choice, stream);
    case 128:
      return Launch<Config<128, 2, 128, kVisible, 4>>(args, choice, stream);
    default:
      return Launch<Config<256, 2, 64, kVisible, 5>>(args, choice, stream);
  }
}

// The tuned choice, or what measuring on one H200 first said: three consumers
// are best for head dim 64, unless the diagonal hides much of their 192 x 128
// scores; where all tiles are of one length, head after head is, since its keys
// and values come from memory once, while all of its tiles run.
Choice Choose(const AttentionBf16Shape& shape, Visible visible,
              int num_multiprocessors) {
  const bool packed = shape.document_offsets != nullptr;
  const int64_t num_keys =
      visible == Visible::kWindow ? shape.window : shape.sequence_length;
  const int64_t num_tiles =
      packed ? shape.num_heads * ((shape.total_tokens + 63) / 64)
             : shape.num_heads * shape.num_sequences *
                   ((shape.sequence_length + 63) / 64);
  const bool is_short = visible != Visible::kAll && num_keys <= 1024;
  constexpr int64_t kMany = 4096;  // More change nothing.
  const TuningValues choice = TunedChoice(
      TunedKernel::kAttentionForward,
      {shape.head_dim, static_cast<int64_t>(visible), SizeClass(num_keys),
       std::min(kMany, SizeClass(num_tiles))},
      {shape.head_dim == 64 && !is_short ? 3 : 2,
       visible == Visible::kAll && !packed ? 1 : HeadsPerSection(shape),
       num_tiles <= num_multiprocessors});
  return {.num_consumers = choice[0],
          .num_heads = choice[1],
          .splits = choice[2] != 0 && SplitTakes(shape)};
}

}  // namespace

bool AttentionForwardBf16Sm90Takes(const AttentionBf16Shape& shape) {
  return shape.softcap == 0;
}

absl::Status LaunchAttentionForwardBf16Sm90(
    const AttentionForwardBf16Args& args, cudaStream_t stream) {
  const AttentionBf16Shape& shape = args.shape;
  RETURN_IF_ERROR(CheckNoSoftcap(shape));
  if (shape.document_offsets != nullptr && shape.total_tokens == 0) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const int num_multiprocessors, NumHopperMultiprocessors());
  // A window that no sequence exceeds hides nothing.
  const Visible visible =
      shape.window != 0 && shape.window < shape.sequence_length
          ? Visible::kWindow
          : (shape.causal ? Visible::kCausal : Visible::kAll);
  const Choice choice = Choose(shape, visible, num_multiprocessors);
  if (choice.splits) {
    RETURN_IF_ERROR(LaunchSplit(args, stream));
    return LaunchAmaxOfOutput(args, stream);
  }
  switch (visible) {
    case Visible::kAll:
      return LaunchHeadDim<Visible::kAll>(args, choice, stream);
    case Visible::kCausal:
      return LaunchHeadDim<Visible::kCausal>(args, choice, stream);
    default:
      return LaunchHeadDim<Visible::kWindow>(args, choice, stream);
  }
}

}  // namespace millrace
