// The persistent GEMM of Hopper as a template: tiles, layouts of the operands,
// where tiles come from and what becomes of a finished one are parameters, so
// that a fused kernel brings its own epilogue and a grouped one its own list.

#ifndef MILLRACE_KERNELS_GEMM_GEMM_BF16_SM90_CUH_
#define MILLRACE_KERNELS_GEMM_GEMM_BF16_SM90_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/wgmma_wide.cuh"

namespace millrace::gemm_sm90 {

using namespace hopper;  // NOLINT: its primitives read as part of the language.

// How the two consumer warpgroups of a block divide its work.
enum class Sharing {
  kHalves,  // Each has half the rows of every tile.
  kTurns,   // Each has every other tile: one multiplies, one writes out.
};

// How the tiles of a cluster's two blocks lie. Each block fetches half of the
// operand that both need, for both.
enum class Pairs {
  kNone,     // One block.
  kStacked,  // One below the other: they share columns of b.
  kAbreast,  // Side by side: they share rows of a.
};

// Shapes of one kernel.
template <int kTileM_, int kTileN_, int kStages_, Pairs kPairs_,
          Sharing kSharing, bool kTransposeA_, bool kTransposeB_>
struct Config {
  static constexpr int kTileM = kTileM_;
  static constexpr int kTileN = kTileN_;
  static constexpr int kTileK = 64;  // 128 bytes, as wide as the swizzle.
  static constexpr int kStages = kStages_;
  static constexpr Pairs kPairs = kPairs_;
  static constexpr int kCluster = kPairs == Pairs::kNone ? 1 : 2;
  static constexpr int kClusterRows = kPairs == Pairs::kStacked ? 2 : 1;
  static constexpr int kClusterColumns = kPairs == Pairs::kAbreast ? 2 : 1;
  static constexpr bool kTurns = kSharing == Sharing::kTurns;
  // An operand is K-major as the door's a [m, k] and b [n, k]; else its rows
  // run along m or n.
  static constexpr bool kTransposeA = kTransposeA_;
  static constexpr bool kTransposeB = kTransposeB_;

  static constexpr int kNumConsumers = 2;
  static constexpr int kConsumersPerTile = kTurns ? 1 : kNumConsumers;
  static constexpr int kRowGroups = kTileM / 64 / kConsumersPerTile;
  static constexpr int kABytes = kTileM * kTileK * 2;
  static constexpr int kBBytes = kTileN * kTileK * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kNumThreads = kWarpgroupSize * (kNumConsumers + 1);
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;
  // For epilogues, a consumer: what the stages leave of the 227 KiB a block may
  // have, up to four times what one copy writes out.
  static constexpr int kPieceBytes = 64 * 128;
  static constexpr int kLeftBytes =
      232448 - 1024 - kBarrierBytes - kStages * kStageBytes;
  static constexpr int kFit = kLeftBytes / (kNumConsumers * kPieceBytes);
  static constexpr int kPieces = kFit < 4 ? kFit : 4;
  static constexpr int kEpilogueBytes = kPieces * kPieceBytes;
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes +
                                      kNumConsumers * kEpilogueBytes +
                                      kBarrierBytes;
  static_assert(kStages <= 8 && kPieces >= 2);
};

struct Params {
  CUtensorMap a, b, c;  // Epilogues use the map of c or the address.
  void* c_data;
  int64_t c_stride;
  int num_rows, num_columns;  // Matrix c's.
  int num_tile_rows;          // In clusters; not of groups.
  int num_tile_columns;       // In clusters.
  int num_k_blocks;
  int raster;
  float scale;
  // For groups, as in GroupedGemmBf16Args.
  const int32_t* group_offsets;
  int num_groups;
  int b_rows_per_group;
};

struct Barriers {
  uint64_t full[8], empty[8];
};

// Named barriers: 0 is __syncthreads().
constexpr int kTurnBarrier = 1;      // + consumer: its turn to multiply.
constexpr int kEpilogueBarrier = 3;  // + consumer: among its own threads.

// A tile of c, and where the rows of b (as stored) begin that belong to it.
struct Tile {
  int row, column;
  int end_row;  // Rows from here on are none of its business.
  int b_row;
};

// The idx-th cluster of a grid in the order of work: bands of `raster` rows,
// within a band column after column, and every other band backwards, so that
// what clusters read at about the same time stays in the L2 cache.
template <typename C>
__device__ __forceinline__ Tile PlaceTile(int idx, int raster, int num_rows,
                                          int num_columns) {
  const int band = idx / (raster * num_columns);
  const int in_band = idx - band * raster * num_columns;
  const int height = min(raster, num_rows - band * raster);
  int column = in_band / height;
  const int row = band * raster + in_band - column * height;
  if (band % 2 == 1) column = num_columns - 1 - column;
  const int rank = C::kCluster == 1 ? 0 : static_cast<int>(ClusterRank());
  const int below = C::kPairs == Pairs::kStacked ? rank : 0;
  const int beside = C::kPairs == Pairs::kAbreast ? rank : 0;
  return {.row = (row * C::kClusterRows + below) * C::kTileM,
          .column = (column * C::kClusterColumns + beside) * C::kTileN};
}

// Tiles of one product.
template <typename C>
struct DenseTiles {
  __device__ __forceinline__ bool Find(const Params& p, int idx, Tile& tile) {
    if (idx >= p.num_tile_rows * p.num_tile_columns) return false;
    tile = PlaceTile<C>(idx, p.raster, p.num_tile_rows, p.num_tile_columns);
    tile.end_row = p.num_rows;
    tile.b_row = 0;
    return true;
  }
};

// Tiles of products that each have some rows of a and c and their own b, group
// after group. Call Find() with ascending idx.
template <typename C>
struct GroupedTiles {
  int group = 0;
  int first_idx = 0;  // First index of the group.

  __device__ __forceinline__ bool Find(const Params& p, int idx, Tile& tile) {
    constexpr int kRows = C::kTileM * C::kClusterRows;
    for (; group < p.num_groups; ++group) {
      const int begin = p.group_offsets[group];
      const int end = p.group_offsets[group + 1];
      const int num_tile_rows = (end - begin + kRows - 1) / kRows;
      const int num_tiles = num_tile_rows * p.num_tile_columns;
      if (idx < first_idx + num_tiles) {
        tile = PlaceTile<C>(idx - first_idx, p.raster, num_tile_rows,
                            p.num_tile_columns);
        tile.row += begin;
        tile.end_row = end;
        tile.b_row = group * p.b_rows_per_group;
        return true;
      }
      first_idx += num_tiles;
    }
    return false;
  }
};

// Position in the ring of stages.
template <int kStages>
struct Ring {
  int stage = 0;
  int parity;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void Advance(int count) {
    const int next = stage + count;
    parity ^= next / kStages & 1;
    stage = next % kStages;
  }
};

// This block's share of what `kSharers` blocks of the cluster need alike:
// kTile rows of one operand and a block along k. `first_row` leads to a group.
template <bool kTranspose, int kTile, int kTileK, int kSharers>
__device__ __forceinline__ void LoadShare(uint8_t* shared,
                                          const CUtensorMap* map,
                                          uint64_t* full, int row, int k,
                                          int first_row) {
  int sharer = 0;
  if constexpr (kSharers > 1) sharer = static_cast<int>(ClusterRank());
  auto load = [&](int offset, int x, int y) {
    if constexpr (kSharers == 1) {
      LoadMatrix(shared + offset, map, full, x, y);
    } else {
      LoadMatrixMulticast(shared + offset, map, full, x, y,
                          (1 << kSharers) - 1);
    }
  };
  if constexpr (kTranspose) {
    constexpr int kShare = kTileK / kSharers;
#pragma unroll
    for (int group = 0; group < kTile / 64; ++group) {
      load(group * kTileK * 128 + sharer * kShare * 128, row + group * 64,
           first_row + k + sharer * kShare);
    }
  } else {
    constexpr int kShare = kTile / kSharers;
    load(sharer * kShare * 128, k, first_row + row + sharer * kShare);
  }
}

// One thread feeds the block.
template <typename C, typename Tiles>
__device__ __forceinline__ void Produce(const Params& p, Barriers& barriers,
                                        uint8_t* stages) {
  PrefetchTensorMap(&p.a);
  PrefetchTensorMap(&p.b);
  Ring<C::kStages> ring{.parity = 1};
  Tiles tiles;
  Tile tile;
  const int step = gridDim.x / C::kCluster;
  for (int idx = blockIdx.x / C::kCluster; tiles.Find(p, idx, tile);
       idx += step) {
    for (int block = 0; block < p.num_k_blocks; ++block) {
      uint64_t* full = &barriers.full[ring.stage];
      uint8_t* a = stages + ring.stage * C::kStageBytes;
      const int k = block * C::kTileK;
      BarrierWait(&barriers.empty[ring.stage], ring.parity);
      BarrierArriveExpect(full, C::kStageBytes);
      LoadShare<C::kTransposeA, C::kTileM, C::kTileK, C::kClusterColumns>(
          a, &p.a, full, tile.row, k, 0);
      LoadShare<C::kTransposeB, C::kTileN, C::kTileK, C::kClusterRows>(
          a + C::kABytes, &p.b, full, tile.column, k, tile.b_row);
      ring.Advance();
    }
  }
}

// One consumer warpgroup: one batch of products is always in flight while the
// stage of the batch before goes back to the producers that fill it.
template <typename C, typename Tiles, typename Epilogue>
__device__ __forceinline__ void Consume(const Params& p, Barriers& barriers,
                                        int consumer, uint8_t* stages,
                                        uint8_t* epilogue_shared) {
  const int thread = threadIdx.x % kWarpgroupSize;
  const int first_row = C::kTurns ? 0 : consumer * C::kRowGroups * 64;
  const uint32_t stages_address = SharedAddress(stages);
  float d[C::kRowGroups][C::kTileN / 2];
  Ring<C::kStages> ring{.parity = 0};

  auto release = [&](int stage) {
    if constexpr (C::kCluster == 1) {
      if (thread == 0) BarrierArrive(&barriers.empty[stage]);
    } else {
      // Every block of the cluster writes to this stage.
      if (thread < C::kCluster) {
        BarrierArriveAt(&barriers.empty[stage], thread);
      }
    }
  };
  auto multiply = [&](int stage, bool first) {
    const uint32_t a = stages_address + stage * C::kStageBytes;
    const uint32_t b = a + C::kABytes;
#pragma unroll
    for (int k = 0; k < C::kTileK / 16; ++k) {
#pragma unroll
      for (int group = 0; group < C::kRowGroups; ++group) {
        // 64 rows of a begin 64 x 128 bytes further in both layouts.
        const uint32_t a_group = a + (first_row + group * 64) * 128;
        MultiplyWide<C::kTileN, C::kTransposeA, C::kTransposeB>(
            d[group],
            SwizzledDescriptor(a_group + k * (C::kTransposeA ? 2048 : 32), 0),
            C::kTransposeB ? SwizzledDescriptor(b + k * 2048, C::kTileK * 128)
                           : SwizzledDescriptor(b + k * 32, 0),
            !(first && k == 0));
      }
    }
    WgmmaCommit();
  };
  auto fence = [&] {
#pragma unroll
    for (int group = 0; group < C::kRowGroups; ++group) RegisterFence(d[group]);
  };
  // A turn ends once its last stage is there: only then is the parity of what
  // the other waits for next unambiguous.
  auto wait_for_turn = [&] {
    if constexpr (C::kTurns) {
      NamedBarrierSync(kTurnBarrier + consumer, 2 * kWarpgroupSize);
    }
  };
  auto pass_turn = [&] {
    if constexpr (C::kTurns) {
      NamedBarrierArrive(kTurnBarrier + 1 - consumer, 2 * kWarpgroupSize);
    }
  };

  const int step = gridDim.x / C::kCluster;
  int idx = blockIdx.x / C::kCluster;
  if (C::kTurns && consumer == 1) {
    ring.Advance(p.num_k_blocks);
    idx += step;
    pass_turn();
  }
  Epilogue epilogue(epilogue_shared, kEpilogueBarrier + consumer);
  Tiles tiles;
  Tile tile;
  for (; tiles.Find(p, idx, tile); idx += C::kTurns ? 2 * step : step) {
    wait_for_turn();
    int previous = -1;
    fence();
    for (int block = 0; block < p.num_k_blocks; ++block) {
      BarrierWait(&barriers.full[ring.stage], ring.parity);
      WgmmaFence();
      multiply(ring.stage, block == 0);
      WgmmaWait<1>();
      if (previous >= 0) release(previous);
      previous = ring.stage;
      ring.Advance();
    }
    pass_turn();
    WgmmaWait<0>();
    fence();
    release(previous);
    if constexpr (C::kTurns) ring.Advance(p.num_k_blocks);
#pragma unroll
    for (int group = 0; group < C::kRowGroups; ++group) {
      epilogue.template Write<C::kTileN>(p, tile.row + first_row + group * 64,
                                         tile.column, tile.end_row, d[group]);
    }
  }
  epilogue.Finish();
}

// One block a multiprocessor for the whole launch. Limited by the tensor cores
// and, above some 750 TFLOP/s on one H200, by the power they may draw.
template <typename C, typename Tiles, typename Epilogue>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    GemmKernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t unaligned_shared[];
  // Swizzled tiles start at multiples of 1024 bytes, at the same place in every
  // block of a cluster.
  uint8_t* stages = reinterpret_cast<uint8_t*>(
      (reinterpret_cast<uintptr_t>(unaligned_shared) + 1023) &
      ~uintptr_t{1023});
  uint8_t* epilogue_shared = stages + C::kStages * C::kStageBytes;
  Barriers& barriers = *reinterpret_cast<Barriers*>(
      epilogue_shared + C::kNumConsumers * C::kEpilogueBytes);
  static_assert(sizeof(Barriers) <= C::kBarrierBytes);

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < C::kStages; ++stage) {
      BarrierInit(&barriers.full[stage], 1);
      BarrierInit(&barriers.empty[stage], C::kConsumersPerTile * C::kCluster);
    }
    BarrierInitFence();
  }
  if constexpr (C::kCluster == 1) {
    __syncthreads();
  } else {
    ClusterSync();
  }

  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ShrinkRegisters<C::kProducerRegisters>();
    if (threadIdx.x == 0) Produce<C, Tiles>(p, barriers, stages);
    __syncwarp();
  } else {
    GrowRegisters<C::kConsumerRegisters>();
    const int consumer = warpgroup - 1;
    Consume<C, Tiles, Epilogue>(p, barriers, consumer, stages,
                                epilogue_shared + consumer * C::kEpilogueBytes);
  }
  // A block stays while another may still write to its shared memory.
  if constexpr (C::kCluster > 1) ClusterSync();
}

}  // namespace millrace::gemm_sm90

#endif  // MILLRACE_KERNELS_GEMM_GEMM_BF16_SM90_CUH_
