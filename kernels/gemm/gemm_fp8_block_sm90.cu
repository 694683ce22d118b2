#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/wgmma_fp8.cuh"
#include "kernels/gemm/gemm_bf16_sm90_epilogue.cuh"
#include "kernels/gemm/gemm_bf16_sm90_launch.cuh"
#include "kernels/gemm/gemm_fp8_block.h"

namespace millrace {
namespace {

using namespace gemm_sm90;  // NOLINT: the vocabulary of this kernel.

// The tiles of gemm_bf16_sm90.cuh, whose elements here are pairs of e4m3: a
// block along k is 128 bytes in both. A consumer has half the rows of a tile.
// It multiplies part after part of its share, so that registers hold the
// products of one part and the sums of all. Both pairs of blocks make clusters
// of 256 x 256, of which the usual sizes of weights are multiples.
template <int kTileM_, int kTileN_, Pairs kPairs_, bool kScalesRowsOfB_>
struct BlockConfig
    : Config<kTileM_, kTileN_, 4, kPairs_, Sharing::kHalves, false, false> {
  using Base =
      Config<kTileM_, kTileN_, 4, kPairs_, Sharing::kHalves, false, false>;
  static constexpr bool kScalesRowsOfB = kScalesRowsOfB_;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  // A part is 64 rows and so many columns, which share a scale where these are
  // of squares.
  static constexpr int kPartColumns = 128;
  static constexpr int kColumnParts = kTileN_ / kPartColumns;
  static constexpr int kParts = Base::kRowGroups * kColumnParts;
  // A consumer with one group of rows reads them once for all parts.
  static constexpr bool kHasAInRegisters = Base::kRowGroups == 1;
  static constexpr int kPieces = 1;
  static constexpr int kEpilogueBytes = kPieces * Base::kPieceBytes;
  // Scales of a's rows, and of b's rows where these have some of their own.
  static constexpr int kScales = kTileM_ + kTileN_;
  static constexpr int kScaleBytes = kScales * 4;
  static constexpr int kSharedBytes = 1024 + Base::kStages * Base::kStageBytes +
                                      Base::kNumConsumers * kEpilogueBytes +
                                      Base::kStages * kScaleBytes +
                                      Base::kBarrierBytes;
  static constexpr int kNumConsumerWarps =
      Base::kNumConsumers * kWarpgroupSize / kWarpSize;
  static_assert(kSharedBytes <= 232448);
};

// Scales of squares, one a tile and block: 256 x 128.
using BySquares = BlockConfig<256, 128, Pairs::kAbreast, false>;
// Scales of rows on both sides: 128 x 256, a in registers. Both were the
// fastest of eight (docs/results/2026-11-28-fp8-blockwise-products.md).
using ByRows = BlockConfig<128, 256, Pairs::kStacked, true>;

struct BlockParams : Params {
  const float* a_scale;
  const float* b_scale;
  int64_t a_scale_stride;
  // From one row of b's scales, or from one group of 128 rows, to the next; and
  // from block to block along k.
  int b_scale_stride;
  int64_t b_scale_block_stride;
};

// Where the parts of a block's shared memory begin.
struct BlockShared {
  uint8_t* stages;
  uint8_t* epilogue;
  float* scales;  // [kStages, kScales]
  Barriers* barriers;
};

// Bytes of so many scales, in whole copies of 16.
__device__ __forceinline__ uint32_t ScaleBytes(int count) {
  return count > 0 ? (count + 3) / 4 * 16 : 0;
}

// One thread feeds the block: tiles of a and b, and the scales of their rows.
template <typename C>
__device__ __forceinline__ void ProduceBlocks(const BlockParams& p,
                                              const BlockShared& shared) {
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
    const uint32_t scale_bytes =
        ScaleBytes(min(C::kTileM, p.num_rows - tile.row));
    const float* scales = p.a_scale + tile.row;
    const uint32_t b_scale_bytes =
        C::kScalesRowsOfB
            ? ScaleBytes(min(C::kTileN, p.num_columns - tile.column))
            : 0;
    const float* b_scales = p.b_scale + tile.column;
    for (int block = 0; block < p.num_k_blocks; ++block) {
      uint64_t* full = &shared.barriers->full[ring.stage];
      uint8_t* a = shared.stages + ring.stage * C::kStageBytes;
      const int k = block * C::kTileK;
      BarrierWait(&shared.barriers->empty[ring.stage], ring.parity);
      BarrierArriveExpect(full, C::kStageBytes + scale_bytes + b_scale_bytes);
      LoadShare<false, C::kTileM, C::kTileK, C::kClusterColumns>(
          a, &p.a, full, tile.row, k, 0);
      LoadShare<false, C::kTileN, C::kTileK, C::kClusterRows>(
          a + C::kABytes, &p.b, full, tile.column, k, 0);
      float* stage_scales = shared.scales + ring.stage * C::kScales;
      if (scale_bytes > 0) {
        LoadBulk(stage_scales, scales, scale_bytes, full);
        scales += p.a_scale_stride;
      }
      if (C::kScalesRowsOfB && b_scale_bytes > 0) {
        LoadBulk(stage_scales + C::kTileM, b_scales, b_scale_bytes, full);
        b_scales += p.b_scale_block_stride;
      }
      ring.Advance();
    }
  }
}

// Adds a block's products to the sums: a thread has two rows, and of eight
// columns each two that lie side by side. `b_scales` begins at its first
// column.
template <int kSize>
__device__ __forceinline__ void AddScaledByRows(float (&sums)[kSize],
                                                const float (&products)[kSize],
                                                const float (&row_scale)[2],
                                                const float* b_scales) {
#pragma unroll
  for (int i = 0; i < kSize; i += 4) {
    const float2 scale = *reinterpret_cast<const float2*>(b_scales + 2 * i);
    sums[i] += row_scale[0] * scale.x * products[i];
    sums[i + 1] += row_scale[0] * scale.y * products[i + 1];
    sums[i + 2] += row_scale[1] * scale.x * products[i + 2];
    sums[i + 3] += row_scale[1] * scale.y * products[i + 3];
  }
}

// The same where all columns have one scale.
template <int kSize>
__device__ __forceinline__ void AddScaledBySquare(
    float (&sums)[kSize], const float (&products)[kSize],
    const float (&row_scale)[2], float scale) {
  const float low = row_scale[0] * scale;
  const float high = row_scale[1] * scale;
#pragma unroll
  for (int i = 0; i < kSize; i += 4) {
    sums[i] += low * products[i];
    sums[i + 1] += low * products[i + 1];
    sums[i + 2] += high * products[i + 2];
    sums[i + 3] += high * products[i + 3];
  }
}

// One consumer warpgroup and its place in the tiles.
template <typename C>
struct BlockConsumer {
  uint32_t stages;
  const BlockShared& shared;
  int consumer;
  int lane;
  int own_row;  // Of this thread, in a group of 64.

  // Where the rows of a group begin in the tile.
  __device__ __forceinline__ int first_row(int group) const {
    return (consumer * C::kRowGroups + group) * 64;
  }

  // Queues the products of a stage's block with the columns of b from
  // `first_column` on.
  __device__ __forceinline__ void Multiply(
      float (&products)[C::kPartColumns / 2], int stage, int group,
      int first_column) const {
    const uint32_t a = stages + stage * C::kStageBytes + first_row(group) * 128;
    const uint32_t b =
        stages + stage * C::kStageBytes + C::kABytes + first_column * 128;
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      MultiplySharedFp8<C::kPartColumns>(
          products, Fp8RowsDescriptor<128>(a + 32 * k),
          Fp8RowsDescriptor<128>(b + 32 * k), /*accumulate=*/k != 0);
    }
    WgmmaCommit();
  }

  // The same with this consumer's 64 rows of a in registers.
  __device__ __forceinline__ void Multiply(
      float (&products)[C::kPartColumns / 2], uint32_t (&a)[4][4], int stage,
      int first_column) const {
    const uint32_t b =
        stages + stage * C::kStageBytes + C::kABytes + first_column * 128;
#pragma unroll
    for (int k = 0; k < 4; ++k) RegisterFence(a[k]);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      MultiplyRegistersFp8<C::kPartColumns>(products, a[k],
                                            Fp8RowsDescriptor<128>(b + 32 * k),
                                            /*accumulate=*/k != 0);
    }
    WgmmaCommit();
  }

  // Reads this consumer's 64 rows of a as first operands of products over 32.
  __device__ __forceinline__ void LoadA(int stage, uint32_t (&a)[4][4]) const {
    const int warp = threadIdx.x % kWarpgroupSize / kWarpSize;
    const int row = first_row(0) + warp * 16 + lane % 16;
    const uint32_t address = stages + stage * C::kStageBytes + row * 128;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int chunk = (2 * k + lane / 16) ^ (row % 8);
      const gpu::Fragment fragment = gpu::LoadMatrix(address + chunk * 16);
#pragma unroll
      for (int r = 0; r < 4; ++r) a[k][r] = fragment.r[r];
    }
  }

  // The scales of this thread's two rows of a group. Whatever shared memory
  // holds beyond the last row scales zeros that nobody stores.
  __device__ __forceinline__ void LoadRowScales(int stage, int group,
                                                float (&scale)[2]) const {
    const float* scales =
        shared.scales + stage * C::kScales + first_row(group) + own_row;
    scale[0] = scales[0];
    scale[1] = scales[8];
  }

  // Both blocks of the cluster write to a stage. Every warp says that it is
  // done: each has read the scales that it needs.
  __device__ __forceinline__ void Release(int stage) const {
    if (lane < C::kCluster) {
      BarrierArriveAt(&shared.barriers->empty[stage], lane);
    }
  }
};

// The scale of a tile's 128 columns, fetched a block ahead.
class SquareScale {
 public:
  // The second block of a cluster may have no columns: any scale will do then.
  __device__ __forceinline__ SquareScale(const BlockParams& p, int column)
      : address_(p.b_scale + int64_t{min(column, p.num_columns - 1) / 128} *
                                 p.b_scale_stride),
        block_stride_(p.b_scale_block_stride),
        last_block_(p.num_k_blocks - 1),
        next_(__ldg(address_)) {}

  __device__ __forceinline__ float next() const { return next_; }
  __device__ __forceinline__ void Fetch(int block) {
    next_ = __ldg(address_ + min(block, last_block_) * block_stride_);
  }

 private:
  const float* address_;
  int64_t block_stride_;
  int last_block_;
  float next_;
};

// Sums up a tile: the tensor cores multiply a part of a block, then fp32 units
// scale it and add it up, meanwhile the other consumer has the tensor cores.
template <typename C>
__device__ __forceinline__ void SumTile(
    const BlockParams& p, const BlockConsumer<C>& self, int column,
    Ring<C::kStages>& ring, float (&sums)[C::kParts][C::kPartColumns / 2]) {
  float products[C::kPartColumns / 2];
  [[maybe_unused]] SquareScale square(p, C::kScalesRowsOfB ? 0 : column);
#pragma unroll 1
  for (int block = 0; block < p.num_k_blocks; ++block) {
    BarrierWait(&self.shared.barriers->full[ring.stage], ring.parity);
    float row_scale[C::kRowGroups][2];
#pragma unroll
    for (int group = 0; group < C::kRowGroups; ++group) {
      self.LoadRowScales(ring.stage, group, row_scale[group]);
    }
    [[maybe_unused]] const float scale = square.next();
    [[maybe_unused]] uint32_t a[4][4];
    if constexpr (C::kHasAInRegisters) self.LoadA(ring.stage, a);
#pragma unroll
    for (int part = 0; part < C::kParts; ++part) {
      const int row_group = part / C::kColumnParts;
      const int first_column = part % C::kColumnParts * C::kPartColumns;
      RegisterFence(products);
      if constexpr (C::kHasAInRegisters) {
        self.Multiply(products, a, ring.stage, first_column);
      } else {
        self.Multiply(products, ring.stage, row_group, first_column);
      }
      if constexpr (!C::kScalesRowsOfB) {
        if (part == 0) square.Fetch(block + 1);
      }
      WgmmaWait<0>();
      RegisterFence(products);
      const bool is_last = part == C::kParts - 1;
      if constexpr (C::kScalesRowsOfB) {
        AddScaledByRows(sums[part], products, row_scale[row_group],
                        self.shared.scales + ring.stage * C::kScales +
                            C::kTileM + first_column + 2 * (self.lane % 4));
        if (is_last) self.Release(ring.stage);
      } else {
        if (is_last) self.Release(ring.stage);
        AddScaledBySquare(sums[part], products, row_scale[row_group], scale);
      }
    }
    ring.Advance();
  }
}

// One consumer warpgroup: half the rows of every tile.
template <typename C, typename Epilogue>
__device__ __forceinline__ void ConsumeBlocks(const BlockParams& p,
                                              const BlockShared& shared,
                                              int consumer) {
  const int thread = threadIdx.x % kWarpgroupSize;
  const int lane = thread % kWarpSize;
  const BlockConsumer<C> self = {.stages = SharedAddress(shared.stages),
                                 .shared = shared,
                                 .consumer = consumer,
                                 .lane = lane,
                                 .own_row = thread / kWarpSize * 16 + lane / 4};
  float sums[C::kParts][C::kPartColumns / 2];
  Ring<C::kStages> ring{.parity = 0};
  Epilogue epilogue(shared.epilogue + consumer * C::kEpilogueBytes,
                    kEpilogueBarrier + consumer);
  DenseTiles<C> tiles;
  Tile tile;
  const int step = gridDim.x / C::kCluster;
  for (int idx = blockIdx.x / C::kCluster; tiles.Find(p, idx, tile);
       idx += step) {
#pragma unroll
    for (int part = 0; part < C::kParts; ++part) {
#pragma unroll
      for (float& sum : sums[part]) sum = 0.0f;
    }
    SumTile<C>(p, self, tile.column, ring, sums);
#pragma unroll
    for (int part = 0; part < C::kParts; ++part) {
      epilogue.template Write<C::kPartColumns>(
          p, tile.row + self.first_row(part / C::kColumnParts),
          tile.column + part % C::kColumnParts * C::kPartColumns, tile.end_row,
          sums[part]);
    }
  }
  epilogue.Finish();
}

// One block a multiprocessor for the whole launch: a producer and two
// consumers. Limited by the tensor cores, a quarter of whose time the fp32
// units need for the sums.
template <typename C, typename Epilogue>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    GemmFp8BlockKernel(const __grid_constant__ BlockParams p) {
  extern __shared__ uint8_t unaligned_shared[];
  BlockShared shared;
  shared.stages = reinterpret_cast<uint8_t*>(
      (reinterpret_cast<uintptr_t>(unaligned_shared) + 1023) &
      ~uintptr_t{1023});
  shared.epilogue = shared.stages + C::kStages * C::kStageBytes;
  shared.scales = reinterpret_cast<float*>(
      shared.epilogue + C::kNumConsumers * C::kEpilogueBytes);
  shared.barriers =
      reinterpret_cast<Barriers*>(shared.scales + C::kStages * C::kScales);
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
    if (threadIdx.x == 0) ProduceBlocks<C>(p, shared);
    __syncwarp();
  } else {
    GrowRegisters<C::kConsumerRegisters>();
    ConsumeBlocks<C, Epilogue>(p, shared, warpgroup - 1);
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
  const bool has_rows = args.scales_of_b == Fp8ScalesOfB::kRows;
  const int64_t num_groups = (args.n + kFp8Block - 1) / kFp8Block;
  const int64_t least_b_scale =
      has_rows                                           ? args.n
      : args.scales_of_b == Fp8ScalesOfB::kTurnedSquares ? num_groups
                                                         : args.k / kFp8Block;
  if (args.a_stride < args.k || args.b_stride < args.k ||
      args.c_stride < args.n || args.a_scale_stride < args.m ||
      args.b_scale_stride < least_b_scale || args.b_scale_stride > kMost) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": a stride is shorter than its rows: ", args.a_stride, ", ",
        args.b_stride, " and ", args.c_stride, " of matrices, ",
        args.a_scale_stride, " and ", args.b_scale_stride, " of scales"));
  }
  const int64_t c_unit = args.fp32_output ? 4 : 8;
  if (args.a_stride % 16 != 0 || args.b_stride % 16 != 0 ||
      args.c_stride % c_unit != 0 || args.a_scale_stride % 4 != 0 ||
      (has_rows && args.b_scale_stride % 4 != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        ": strides of a, b, c and of the scales of rows are multiples of 16 "
        "bytes; got ",
        args.a_stride, ", ", args.b_stride, ", ", args.c_stride, ", ",
        args.a_scale_stride, " and ", args.b_scale_stride, " elements"));
  }
  for (const void* address :
       {static_cast<const void*>(args.c), args.a, args.b,
        static_cast<const void*>(args.a_scale),
        static_cast<const void*>(has_rows ? args.b_scale : nullptr)}) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": addresses are multiples of 16 bytes; one is not"));
    }
  }
  if (args.accumulate && !args.fp32_output) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": adds to c in fp32 alone"));
  }
  if (has_rows && !args.fp32_output) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": scales of b's rows come with c in fp32 alone"));
  }
  return absl::OkStatus();
}

// Clusters of rows that are worked on together, which makes a round of 66
// clusters about square: 8 x 256 rows, 8 x 256 columns.
constexpr int kBlockRaster = 8;

template <typename C, typename Epilogue>
absl::Status LaunchBlock(const BlockParams& params, int num_clusters,
                         cudaStream_t stream) {
  const auto kernel = GemmFp8BlockKernel<C, Epilogue>;
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

template <typename C>
absl::Status LaunchBlocks(const GemmFp8BlockArgs& args, int num_multiprocessors,
                          cudaStream_t stream) {
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
  const bool is_by_group = args.scales_of_b == Fp8ScalesOfB::kSquares;
  p.b_scale_stride = is_by_group ? static_cast<int>(args.b_scale_stride) : 1;
  p.b_scale_block_stride = is_by_group ? 1 : args.b_scale_stride;
  const int num_clusters = NumClusters(p.num_tile_rows * p.num_tile_columns,
                                       num_multiprocessors / C::kCluster);
  if constexpr (!C::kScalesRowsOfB) {
    if (!args.fp32_output) {
      return LaunchBlock<C, StoreBf16<C>>(p, num_clusters, stream);
    }
  }
  return args.accumulate
             ? LaunchBlock<C, StoreFp32<C, true>>(p, num_clusters, stream)
             : LaunchBlock<C, StoreFp32<C, false>>(p, num_clusters, stream);
}

}  // namespace

absl::Status LaunchGemmFp8BlockSm90(const GemmFp8BlockArgs& args,
                                    int num_multiprocessors,
                                    cudaStream_t stream) {
  RETURN_IF_ERROR(CheckBlockArgs(args));
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  if (!limits.IsHopper()) {
    return absl::UnavailableError(absl::StrCat(
        "blockwise fp8 GEMM runs on Hopper (compute capability 9.0); the "
        "device has ",
        limits.compute_capability / 10, ".", limits.compute_capability % 10));
  }
  const int most = num_multiprocessors == 0 ? limits.num_multiprocessors
                                            : num_multiprocessors;
  return args.scales_of_b == Fp8ScalesOfB::kRows
             ? LaunchBlocks<ByRows>(args, most, stream)
             : LaunchBlocks<BySquares>(args, most, stream);
}

}  // namespace millrace
