#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/wgmma_fp8.cuh"
#include "kernels/gemm/gemm_bf16_sm90_epilogue.cuh"
#include "kernels/gemm/gemm_bf16_sm90_launch.cuh"
#include "kernels/gemm/gemm_fp8_block.h"

namespace millrace {
namespace {

using namespace gemm_sm90;  // NOLINT: the vocabulary of this kernel.

// The tiles of gemm_bf16_sm90.cuh, whose elements here are pairs of e4m3: a
// block along k is 128 bytes in both. A consumer has 64 rows and 192 columns,
// once for the block's products and once for their sum. The two blocks of a
// cluster lie one below the other and share columns of b.
struct BlockConfig
    : Config<128, 192, 4, Pairs::kStacked, Sharing::kHalves, false, false> {
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kPieces = 3;
  static constexpr int kEpilogueBytes = kPieces * kPieceBytes;
  static constexpr int kScaleBytes = kTileM * 4;
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes +
                                      kNumConsumers * kEpilogueBytes +
                                      kStages * kScaleBytes + kBarrierBytes;
  static constexpr int kColumnGroups = kTileN / 64;  // Each has one scale.
  static constexpr int kNumConsumerWarps =
      kNumConsumers * kWarpgroupSize / kWarpSize;
  static_assert(kSharedBytes <= 232448);
};

struct BlockParams : Params {
  const float* a_scale;
  const float* b_scale;
  int64_t a_scale_stride;
  int b_scale_stride;
};

// Where the parts of a block's shared memory begin.
struct BlockShared {
  uint8_t* stages;
  uint8_t* epilogue;
  float* scales;  // [kStages, kTileM]
  Barriers* barriers;
};

// One thread feeds the block: tiles of a and b, and the scales of a's rows.
__device__ __forceinline__ void ProduceBlocks(const BlockParams& p,
                                              const BlockShared& shared) {
  using C = BlockConfig;
  PrefetchTensorMap(&p.a);
  PrefetchTensorMap(&p.b);
  Ring<C::kStages> ring{.parity = 1};
  DenseTiles<C> tiles;
  Tile tile;
  const int step = gridDim.x / C::kCluster;
  for (int idx = blockIdx.x / C::kCluster; tiles.Find(p, idx, tile);
       idx += step) {
    // The second block of a cluster may have no rows; the last rows of a block
    // may be fewer than a copy's multiple of four, which the stride has room
    // for.
    const int num_rows = min(C::kTileM, p.num_rows - tile.row);
    const uint32_t scale_bytes = num_rows > 0 ? (num_rows + 3) / 4 * 16 : 0;
    const float* scales = p.a_scale + tile.row;
    for (int block = 0; block < p.num_k_blocks; ++block) {
      uint64_t* full = &shared.barriers->full[ring.stage];
      uint8_t* a = shared.stages + ring.stage * C::kStageBytes;
      const int k = block * C::kTileK;
      BarrierWait(&shared.barriers->empty[ring.stage], ring.parity);
      BarrierArriveExpect(full, C::kStageBytes + scale_bytes);
      LoadShare<false, C::kTileM, C::kTileK, C::kClusterColumns>(
          a, &p.a, full, tile.row, k, 0);
      LoadShare<false, C::kTileN, C::kTileK, C::kClusterRows>(
          a + C::kABytes, &p.b, full, tile.column, k, 0);
      if (scale_bytes > 0) {
        LoadBulk(shared.scales + ring.stage * C::kTileM, scales, scale_bytes,
                 full);
        scales += p.a_scale_stride;
      }
      ring.Advance();
    }
  }
}

// One consumer warpgroup: the tensor cores multiply a block, then fp32 units
// scale it and add it up, meanwhile the other consumer has the tensor cores.
template <typename Epilogue>
__device__ __forceinline__ void ConsumeBlocks(const BlockParams& p,
                                              const BlockShared& shared,
                                              int consumer) {
  using C = BlockConfig;
  static_assert(C::kRowGroups == 1);
  const int thread = threadIdx.x % kWarpgroupSize;
  const int lane = thread % kWarpSize;
  const int first_row = consumer * 64;
  const int own_row = first_row + thread / kWarpSize * 16 + lane / 4;
  const uint32_t stages = SharedAddress(shared.stages);
  float products[C::kTileN / 2];
  float sums[C::kTileN / 2];
  Ring<C::kStages> ring{.parity = 0};
  Epilogue epilogue(shared.epilogue + consumer * C::kEpilogueBytes,
                    kEpilogueBarrier + consumer);
  DenseTiles<C> tiles;
  Tile tile;
  const int step = gridDim.x / C::kCluster;
  const int last_group = (p.num_columns - 1) / 128;
  for (int idx = blockIdx.x / C::kCluster; tiles.Find(p, idx, tile);
       idx += step) {
    // Groups of 64 columns have one scale each; beyond the last column any.
    const float* b_scale[C::kColumnGroups];
    float next[C::kColumnGroups];
#pragma unroll
    for (int g = 0; g < C::kColumnGroups; ++g) {
      const int group = min((tile.column + 64 * g) / 128, last_group);
      b_scale[g] = p.b_scale + int64_t{group} * p.b_scale_stride;
      next[g] = __ldg(b_scale[g]);
    }
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
#pragma unroll 1
    for (int block = 0; block < p.num_k_blocks; ++block) {
      BarrierWait(&shared.barriers->full[ring.stage], ring.parity);
      // Whatever shared memory holds beyond the last row scales zeros that
      // nobody stores.
      const float* a_scale = shared.scales + ring.stage * C::kTileM + own_row;
      const float row_scale[2] = {a_scale[0], a_scale[8]};
      float scale[C::kColumnGroups];
#pragma unroll
      for (int g = 0; g < C::kColumnGroups; ++g) scale[g] = next[g];
      const uint32_t a = stages + ring.stage * C::kStageBytes + first_row * 128;
      const uint32_t b = stages + ring.stage * C::kStageBytes + C::kABytes;
      RegisterFence(products);
      WgmmaFence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        MultiplySharedFp8<C::kTileN>(products,
                                     Fp8RowsDescriptor<128>(a + 32 * k),
                                     Fp8RowsDescriptor<128>(b + 32 * k),
                                     /*accumulate=*/k != 0);
      }
      WgmmaCommit();
      const int later = min(block + 1, p.num_k_blocks - 1);
#pragma unroll
      for (int g = 0; g < C::kColumnGroups; ++g) {
        next[g] = __ldg(b_scale[g] + later);
      }
      WgmmaWait<0>();
      RegisterFence(products);
      // Both blocks of the cluster write to this stage. Every warp says that it
      // is done: each has read scales of its own rows.
      if (lane < C::kCluster) {
        BarrierArriveAt(&shared.barriers->empty[ring.stage], lane);
      }
      ring.Advance();
#pragma unroll
      for (int g = 0; g < C::kColumnGroups; ++g) {
        const float low = row_scale[0] * scale[g];
        const float high = row_scale[1] * scale[g];
#pragma unroll
        for (int i = 32 * g; i < 32 * (g + 1); i += 4) {
          sums[i] += low * products[i];
          sums[i + 1] += low * products[i + 1];
          sums[i + 2] += high * products[i + 2];
          sums[i + 3] += high * products[i + 3];
        }
      }
    }
    epilogue.template Write<C::kTileN>(p, tile.row + first_row, tile.column,
                                       tile.end_row, sums);
  }
  epilogue.Finish();
}

// One block a multiprocessor for the whole launch: a producer and two
// consumers. Limited by the tensor cores, a quarter of whose time the fp32
// units need for the sums.
template <typename Epilogue>
__global__ void __launch_bounds__(BlockConfig::kNumThreads, 1)
    GemmFp8BlockKernel(const __grid_constant__ BlockParams p) {
  using C = BlockConfig;
  extern __shared__ uint8_t unaligned_shared[];
  BlockShared shared;
  shared.stages = reinterpret_cast<uint8_t*>(
      (reinterpret_cast<uintptr_t>(unaligned_shared) + 1023) &
      ~uintptr_t{1023});
  shared.epilogue = shared.stages + C::kStages * C::kStageBytes;
  shared.scales = reinterpret_cast<float*>(
      shared.epilogue + C::kNumConsumers * C::kEpilogueBytes);
  shared.barriers =
      reinterpret_cast<Barriers*>(shared.scales + C::kStages * C::kTileM);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < C::kStages; ++stage) {
      BarrierInit(&shared.barriers->full[stage], 1);
      BarrierInit(&shared.barriers->empty[stage],
                  C::kNumConsumerWarps * C::kCluster);
    }
    BarrierInitFence();
  }
  ClusterSync();

  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ShrinkRegisters<C::kProducerRegisters>();
    if (threadIdx.x == 0) ProduceBlocks(p, shared);
    __syncwarp();
  } else {
    GrowRegisters<C::kConsumerRegisters>();
    ConsumeBlocks<Epilogue>(p, shared, warpgroup - 1);
  }
  // A block stays while the other may still write to its shared memory.
  ClusterSync();
}

absl::Status CheckBlockArgs(const GemmFp8BlockArgs& args) {
  const std::string name =
      absl::StrCat("blockwise fp8 GEMM m", args.m, "n", args.n, "k", args.k);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - 512;
  if (args.m < 1 || args.n < 1 || args.k < 1 || args.m > kMost ||
      args.n > kMost || args.k > kMost || args.k % kFp8Block != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": sizes are from 1 to ", kMost,
                     ", and k a multiple of ", kFp8Block));
  }
  if (args.a_stride < args.k || args.b_stride < args.k ||
      args.c_stride < args.n || args.a_scale_stride < args.m ||
      args.b_scale_stride < args.k / kFp8Block) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": a stride is shorter than its rows: ", args.a_stride, ", ",
        args.b_stride, " and ", args.c_stride, " of matrices, ",
        args.a_scale_stride, " and ", args.b_scale_stride, " of scales"));
  }
  const int64_t c_unit = args.fp32_output ? 4 : 8;
  if (args.a_stride % 16 != 0 || args.b_stride % 16 != 0 ||
      args.c_stride % c_unit != 0 || args.a_scale_stride % 4 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        ": strides of a, b, c and of a's scales are multiples of 16 "
        "bytes; got ",
        args.a_stride, ", ", args.b_stride, ", ", args.c_stride, " and ",
        args.a_scale_stride, " elements"));
  }
  for (const void* address : {static_cast<const void*>(args.c), args.a, args.b,
                              static_cast<const void*>(args.a_scale)}) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": addresses are multiples of 16 bytes; one is not"));
    }
  }
  if (args.accumulate && !args.fp32_output) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": adds to c in fp32 alone"));
  }
  return absl::OkStatus();
}

// Clusters of rows that are worked on together, which makes a round of 66
// clusters about square: 8 x 256 rows, 8 x 192 columns.
constexpr int kBlockRaster = 8;

template <typename Epilogue>
absl::Status LaunchBlock(const BlockParams& params, int num_clusters,
                         cudaStream_t stream) {
  using C = BlockConfig;
  const auto kernel = GemmFp8BlockKernel<Epilogue>;
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), C::kSharedBytes));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(num_clusters * C::kCluster);
  config.blockDim = dim3(C::kNumThreads);
  config.dynamicSmemBytes = C::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {C::kCluster, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, params),
                    "launch GemmFp8BlockSm90");
}

}  // namespace

absl::Status LaunchGemmFp8BlockSm90(const GemmFp8BlockArgs& args,
                                    int num_multiprocessors,
                                    cudaStream_t stream) {
  using C = BlockConfig;
  RETURN_IF_ERROR(CheckBlockArgs(args));
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  if (!limits.IsHopper()) {
    return absl::UnavailableError(absl::StrCat(
        "blockwise fp8 GEMM runs on Hopper (compute capability 9.0); the "
        "device has ",
        limits.compute_capability / 10, ".", limits.compute_capability % 10));
  }
  BlockParams p = {};
  ASSIGN_OR_RETURN(static_cast<Params&>(p),
                   MakeParams<C>({.c = args.c,
                                  .a = {.data = args.a,
                                        .rows = args.m,
                                        .columns = args.k / 2,
                                        .row_stride = args.a_stride / 2},
                                  .b = {.data = args.b,
                                        .rows = args.n,
                                        .columns = args.k / 2,
                                        .row_stride = args.b_stride / 2},
                                  .c_stride = args.c_stride,
                                  .num_rows = args.m,
                                  .num_columns = args.n,
                                  .k = args.k / 2,
                                  .scale = 1.0f,
                                  .c_is_fp32 = args.fp32_output},
                                 kBlockRaster));
  p.a_scale = args.a_scale;
  p.b_scale = args.b_scale;
  p.a_scale_stride = args.a_scale_stride;
  p.b_scale_stride = static_cast<int>(args.b_scale_stride);
  const int most = num_multiprocessors == 0 ? limits.num_multiprocessors
                                            : num_multiprocessors;
  const int num_clusters =
      NumClusters(p.num_tile_rows * p.num_tile_columns, most / C::kCluster);
  if (!args.fp32_output) {
    return LaunchBlock<StoreBf16<C>>(p, num_clusters, stream);
  }
  return args.accumulate
             ? LaunchBlock<StoreFp32<C, true>>(p, num_clusters, stream)
             : LaunchBlock<StoreFp32<C, false>>(p, num_clusters, stream);
}

}  // namespace millrace
