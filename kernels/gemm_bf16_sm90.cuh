// The persistent GEMM of Hopper as a template: tiles, layouts of the operands
// and what becomes of a finished tile are parameters, so that a fused kernel
// brings its own epilogue.

#ifndef MILLRACE_KERNELS_GEMM_BF16_SM90_CUH_
#define MILLRACE_KERNELS_GEMM_BF16_SM90_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/wgmma_wide.cuh"

namespace millrace::gemm_sm90 {

using namespace hopper;  // NOLINT: its primitives read as part of the language.

// Shapes of one kernel. A block has two consumer warpgroups. In turns, each has
// a tile of its own while the other writes out; else they halve the rows of
// one.
template <int kTileN_, int kStages_, int kCluster_, bool kTurns_,
          bool kTransposeA_, bool kTransposeB_, int kSkew_ = 0>
struct Config {
  static constexpr int kTileM = 128;
  static constexpr int kTileN = kTileN_;
  static constexpr int kTileK = 64;  // 128 bytes, as wide as the swizzle.
  static constexpr int kStages = kStages_;
  static constexpr int kCluster = kCluster_;
  static constexpr bool kTurns = kTurns_;
  // An operand is K-major as the door's a [m, k] and b [n, k]; else its rows
  // run along m or n.
  static constexpr bool kTransposeA = kTransposeA_;
  static constexpr bool kTransposeB = kTransposeB_;
  static constexpr int kSkew = kSkew_;

  static constexpr int kNumConsumers = 2;
  static constexpr int kConsumersPerTile = kTurns ? 1 : kNumConsumers;
  static constexpr int kRowGroups = kTileM / 64 / kConsumersPerTile;
  static constexpr int kABytes = kTileM * kTileK * 2;
  static constexpr int kBBytes = kTileN * kTileK * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  // A piece is what one copy writes out: 64 rows of 128 bytes. Each consumer
  // has two.
  static constexpr int kPieceBytes = 64 * 128;
  static constexpr int kPieces = 2;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes +
                                      kNumConsumers * kPieces * kPieceBytes +
                                      kBarrierBytes;
  static constexpr int kNumThreads = kWarpgroupSize * (kNumConsumers + 1);
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;
  static_assert(kSharedBytes <= 232448);
};

struct Params {
  CUtensorMap a, b, c;
  int num_tile_rows;  // In clusters.
  int num_tile_columns;
  int num_k_blocks;
  int raster;
  float scale;
};

struct Barriers {
  uint64_t full[8], empty[8];
};

// Named barriers: 0 is __syncthreads().
constexpr int kPieceBarrier = 1;  // + consumer.
constexpr int kTurnBarrier = 3;   // + consumer: its turn to multiply.
constexpr int kSkewBarrier = 5;

// First row and column of a tile.
struct Tile {
  int row, column;
};

// Bands of `raster` clusters of rows; within a band column after column.
template <typename C>
__device__ __forceinline__ Tile TileAt(const Params& p, int idx) {
  const int tiles_per_band = p.raster * p.num_tile_columns;
  const int band = idx / tiles_per_band;
  const int in_band = idx - band * tiles_per_band;
  const int rows = min(p.raster, p.num_tile_rows - band * p.raster);
  const int column = in_band / rows;
  const int row = band * p.raster + in_band - column * rows;
  const int rank = C::kCluster == 1 ? 0 : static_cast<int>(ClusterRank());
  return {(row * C::kCluster + rank) * C::kTileM, column * C::kTileN};
}

struct Work {
  int first, step, end;
};

template <typename C>
__device__ __forceinline__ Work MyTiles(const Params& p) {
  return {static_cast<int>(blockIdx.x) / C::kCluster,
          static_cast<int>(gridDim.x) / C::kCluster,
          p.num_tile_rows * p.num_tile_columns};
}

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

// One thread feeds the block. The blocks of a cluster need the same columns:
// each fetches its share of them for all.
template <typename C>
__device__ __forceinline__ void Produce(const Params& p, Barriers& barriers,
                                        uint8_t* stages) {
  PrefetchTensorMap(&p.a);
  PrefetchTensorMap(&p.b);
  PrefetchTensorMap(&p.c);
  const int rank = C::kCluster == 1 ? 0 : static_cast<int>(ClusterRank());
  constexpr uint16_t kAllBlocks = (1 << C::kCluster) - 1;
  Ring<C::kStages> ring{.parity = 1};
  const Work work = MyTiles<C>(p);
  for (int idx = work.first; idx < work.end; idx += work.step) {
    const Tile tile = TileAt<C>(p, idx);
    for (int block = 0; block < p.num_k_blocks; ++block) {
      uint64_t* full = &barriers.full[ring.stage];
      uint8_t* a = stages + ring.stage * C::kStageBytes;
      uint8_t* b = a + C::kABytes;
      const int k = block * C::kTileK;
      BarrierWait(&barriers.empty[ring.stage], ring.parity);
      BarrierArriveExpect(full, C::kStageBytes);
      if constexpr (C::kTransposeA) {
        for (int group = 0; group < C::kTileM / 64; ++group) {
          LoadMatrix(a + group * C::kTileK * 128, &p.a, full,
                     tile.row + group * 64, k);
        }
      } else {
        LoadMatrix(a, &p.a, full, k, tile.row);
      }
      auto load_b = [&](int offset, int column, int row) {
        if constexpr (C::kCluster == 1) {
          LoadMatrix(b + offset, &p.b, full, column, row);
        } else {
          LoadMatrixMulticast(b + offset, &p.b, full, column, row, kAllBlocks);
        }
      };
      if constexpr (C::kTransposeB) {
        constexpr int kShare = C::kTileK / C::kCluster;
        for (int group = 0; group < C::kTileN / 64; ++group) {
          load_b(group * C::kTileK * 128 + rank * kShare * 128,
                 tile.column + group * 64, k + rank * kShare);
        }
      } else {
        constexpr int kShare = C::kTileN / C::kCluster;
        load_b(rank * kShare * 128, k, tile.column + rank * kShare);
      }
      ring.Advance();
    }
  }
}

// Rounds to bf16 and stores.
struct StoreBf16 {
  static constexpr int kColumns = 64;  // Of a piece.

  // Writes columns [first, first + kColumns) of this thread's accumulators to
  // the piece.
  template <int kSize>
  static __device__ __forceinline__ void Write(uint32_t piece,
                                               const float (&d)[kSize],
                                               int first, float scale) {
    const int thread = threadIdx.x % kWarpgroupSize;
    const int lane = thread % kWarpSize;
    const int row = thread / kWarpSize * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const int i = first / 2 + 4 * j;
      StoreMatrix4(piece + row * 128 + (((j + lane / 16) ^ row) % 8) * 16,
                   PackBfloat16(d[i] * scale, d[i + 1] * scale),
                   PackBfloat16(d[i + 2] * scale, d[i + 3] * scale),
                   PackBfloat16(d[i + 4] * scale, d[i + 5] * scale),
                   PackBfloat16(d[i + 6] * scale, d[i + 7] * scale));
    }
  }

  static __device__ __forceinline__ void Send(const CUtensorMap* map,
                                              const void* piece, int column,
                                              int row) {
    StoreMatrix(map, piece, column, row);
  }
};

// Stores, or adds, in fp32.
template <bool kAdd>
struct StoreFp32 {
  static constexpr int kColumns = 32;

  template <int kSize>
  static __device__ __forceinline__ void Write(uint32_t piece,
                                               const float (&d)[kSize],
                                               int first, float scale) {
    const int thread = threadIdx.x % kWarpgroupSize;
    const int lane = thread % kWarpSize;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = thread / kWarpSize * 16 + half * 8 + lane / 4;
        const int chunk = 2 * j + lane % 4 / 2;
        const int i = first / 2 + 4 * j + 2 * half;
        asm volatile(
            "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                piece + row * 128 + ((chunk ^ row) % 8) * 16 + lane % 2 * 8),
            "f"(d[i] * scale), "f"(d[i + 1] * scale)
            : "memory");
      }
    }
  }

  static __device__ __forceinline__ void Send(const CUtensorMap* map,
                                              const void* piece, int column,
                                              int row) {
    if constexpr (kAdd) {
      ReduceAddMatrix(map, piece, column, row);
    } else {
      StoreMatrix(map, piece, column, row);
    }
  }
};

// A finished accumulator of 64 rows goes out piece after piece; the next is
// written while the copy engine still reads the last.
template <typename C, typename Epilogue, int kSize>
__device__ __forceinline__ void WriteTile(const Params& p, int row, int column,
                                          int consumer, uint8_t* pieces,
                                          int& piece, const float (&d)[kSize]) {
  const bool leader = threadIdx.x % kWarpgroupSize == 0;
#pragma unroll
  for (int first = 0; first < C::kTileN; first += Epilogue::kColumns) {
    uint8_t* shared = pieces + piece * C::kPieceBytes;
    if (leader) WaitStoresRead<C::kPieces - 1>();
    NamedBarrierSync(kPieceBarrier + consumer, kWarpgroupSize);
    Epilogue::Write(SharedAddress(shared), d, first, p.scale);
    FenceSharedForAsync();
    NamedBarrierSync(kPieceBarrier + consumer, kWarpgroupSize);
    if (leader) {
      Epilogue::Send(&p.c, shared, column + first, row);
      CommitStores();
    }
    piece ^= 1;
  }
}

// One consumer warpgroup: one batch of products is always in flight while the
// stage of the batch before goes back to the producers that fill it.
template <typename C, typename Epilogue>
__device__ __forceinline__ void Consume(const Params& p, Barriers& barriers,
                                        int consumer, uint8_t* stages,
                                        uint8_t* pieces) {
  const int thread = threadIdx.x % kWarpgroupSize;
  const bool leader = thread == 0;
  const uint32_t stages_address = SharedAddress(stages);
  float d[C::kRowGroups][C::kTileN / 2];
  int piece = 0;
  Ring<C::kStages> ring{.parity = 0};

  auto release = [&](int stage) {
    if constexpr (C::kCluster == 1) {
      if (leader) BarrierArrive(&barriers.empty[stage]);
    } else {
      if (thread < C::kCluster) {
        BarrierArriveAt(&barriers.empty[stage], thread);
      }
    }
  };
  auto multiply = [&](int stage, bool first) {
    const uint32_t a = stages_address + stage * C::kStageBytes;
    const uint32_t b = a + C::kABytes;
    const int rows = C::kTurns ? 0 : consumer * 64;
#pragma unroll
    for (int k = 0; k < C::kTileK / 16; ++k) {
#pragma unroll
      for (int group = 0; group < C::kRowGroups; ++group) {
        // 64 rows of a start 64 x 128 bytes further, in both layouts.
        const uint32_t a_group = a + (rows + group * 64) * 128;
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

  const Work work = MyTiles<C>(p);
  int idx = work.first;
  if (C::kTurns && consumer == 1) {
    ring.Advance(p.num_k_blocks);
    idx += work.step;
  }
  if (C::kSkew > 0 && consumer == 1) {
    NamedBarrierSync(kSkewBarrier, 2 * kWarpgroupSize);
  }
  bool skewed = C::kSkew == 0 || consumer == 1;
  // A turn ends once its last stage is there: only then is the parity of what
  // the other waits for next unambiguous.
  auto pass_turn = [&] {
    if constexpr (C::kTurns) {
      NamedBarrierArrive(kTurnBarrier + 1 - consumer, 2 * kWarpgroupSize);
    }
  };
  if (consumer == 1) pass_turn();
  for (; idx < work.end; idx += (C::kTurns ? 2 : 1) * work.step) {
    int previous = -1;
    fence();
    if constexpr (C::kTurns) {
      NamedBarrierSync(kTurnBarrier + consumer, 2 * kWarpgroupSize);
    }
    for (int block = 0; block < p.num_k_blocks; ++block) {
      BarrierWait(&barriers.full[ring.stage], ring.parity);
      WgmmaFence();
      multiply(ring.stage, block == 0);
      WgmmaWait<1>();
      if (previous >= 0) release(previous);
      previous = ring.stage;
      ring.Advance();
      if (C::kSkew > 0 && !skewed &&
          (block == C::kSkew || block == p.num_k_blocks - 1)) {
        NamedBarrierArrive(kSkewBarrier, 2 * kWarpgroupSize);
        skewed = true;
      }
    }
    pass_turn();
    WgmmaWait<0>();
    fence();
    release(previous);
    if constexpr (C::kTurns) ring.Advance(p.num_k_blocks);
    const Tile tile = TileAt<C>(p, idx);
#pragma unroll
    for (int group = 0; group < C::kRowGroups; ++group) {
      WriteTile<C, Epilogue>(p, tile.row + (C::kTurns ? group : consumer) * 64,
                             tile.column, consumer, pieces, piece, d[group]);
    }
  }
  if (leader) WaitStores<0>();
}

// One block a multiprocessor for the whole launch. Limited by the tensor cores
// and by the power they draw.
template <typename C, typename Epilogue>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    GemmKernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t unaligned_shared[];
  // Swizzled tiles start at multiples of 1024 bytes, at the same place in every
  // block of a cluster.
  uint8_t* stages = reinterpret_cast<uint8_t*>(
      (reinterpret_cast<uintptr_t>(unaligned_shared) + 1023) &
      ~uintptr_t{1023});
  uint8_t* pieces = stages + C::kStages * C::kStageBytes;
  Barriers& barriers = *reinterpret_cast<Barriers*>(
      pieces + C::kNumConsumers * C::kPieces * C::kPieceBytes);
  static_assert(sizeof(Barriers) <= C::kBarrierBytes && C::kStages <= 8);

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
    if (threadIdx.x == 0) Produce<C>(p, barriers, stages);
    __syncwarp();
  } else {
    GrowRegisters<C::kConsumerRegisters>();
    const int consumer = warpgroup - 1;
    Consume<C, Epilogue>(p, barriers, consumer, stages,
                         pieces + consumer * C::kPieces * C::kPieceBytes);
  }
  // A block stays while another may still write to its shared memory.
  if constexpr (C::kCluster > 1) ClusterSync();
}

}  // namespace millrace::gemm_sm90

#endif  // MILLRACE_KERNELS_GEMM_BF16_SM90_CUH_
