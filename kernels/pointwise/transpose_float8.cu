#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/transpose_bytes.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/pointwise/cast_bf16.h"

namespace millrace {
namespace {

// A block turns a tile. A thread has a patch of 4 rows x 16 columns.
constexpr int kTurnTile = 128;
constexpr int kTurnPatchRows = 4;
constexpr int kTurnPatchColumns = 16;
constexpr int kTurnAcross = kTurnTile / kTurnPatchColumns;
constexpr int kTurnDown = kTurnTile / kTurnPatchRows;
constexpr int kTurnThreads = kTurnAcross * kTurnDown;

// Sixteen bytes at `address`, of which `count` exist; the others are zero and
// are not stored. kIsWide: an address is a multiple of sixteen, and all exist
// or none.
template <bool kIsWide>
__device__ __forceinline__ uint4 LoadSixteen(const uint8_t* address,
                                             int count) {
  if constexpr (kIsWide) {
    return count > 0 ? gpu::Load16Streaming(address) : uint4{};
  }
  uint32_t words[4] = {};
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    if (j < count) words[j / 4] |= uint32_t{address[j]} << (8 * (j % 4));
  }
  return {words[0], words[1], words[2], words[3]};
}
template <bool kIsWide>
__device__ __forceinline__ void StoreSixteen(uint8_t* address, uint4 raw,
                                             int count) {
  if constexpr (kIsWide) {
    if (count > 0) gpu::Store16Streaming(address, raw);
    return;
  }
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    if (j < count)
      address[j] = static_cast<uint8_t>(words[j / 4] >> 8 * (j % 4));
  }
}

// How many of the sixteen from `first` on lie below `end`.
__device__ __forceinline__ int CountOf(int64_t first, int64_t end) {
  return static_cast<int>(max(int64_t{0}, min(int64_t{16}, end - first)));
}

// Threads read their patches, turn squares of 4 x 4 bytes in registers and pass
// them through shared memory, so that rows and columns are read and written in
// whole lines. Limited by memory bandwidth.
template <bool kIsWide>
__global__ void __launch_bounds__(kTurnThreads) TransposeFloat8Kernel(
    const __grid_constant__ TransposeFloat8CudaArgs args) {
  const int across = threadIdx.x % kTurnAcross;
  const int down = threadIdx.x / kTurnAcross;
  const int64_t first_row = int64_t{blockIdx.y} * kTurnTile;
  const int64_t first_column = int64_t{blockIdx.x} * kTurnTile;
  const int64_t row = first_row + kTurnPatchRows * down;
  const int64_t column = first_column + kTurnPatchColumns * across;
  const int num_columns = CountOf(column, args.columns);
  uint32_t patch[kTurnPatchRows][4];
#pragma unroll
  for (int i = 0; i < kTurnPatchRows; ++i) {
    const uint4 raw =
        LoadSixteen<kIsWide>(static_cast<const uint8_t*>(args.x) +
                                 (row + i) * args.x_row_stride + column,
                             row + i < args.rows ? num_columns : 0);
    patch[i][0] = raw.x;
    patch[i][1] = raw.y;
    patch[i][2] = raw.z;
    patch[i][3] = raw.w;
  }

  // [column of the tile][patch down], the patches permuted in fours, so that
  // the stores of a warp meet no bank conflicts, nor do its loads.
  __shared__ alignas(16) uint32_t turned[kTurnTile * kTurnDown];
  auto slot = [](int tile_column, int patch_down) {
    return tile_column * kTurnDown +
           (patch_down ^ (4 * (tile_column / kTurnPatchColumns)));
  };
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    uint32_t square[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) square[i] = patch[i][part];
    gpu::TransposeBytes(square);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      turned[slot(kTurnPatchColumns * across + 4 * part + j, down)] = square[j];
    }
  }
  __syncthreads();
  // Now a thread takes sixteen rows of a column.
  constexpr int kSixteensDown = kTurnTile / 16;
#pragma unroll
  for (int i = threadIdx.x; i < kTurnTile * kSixteensDown; i += kTurnThreads) {
    const int tile_column = i / kSixteensDown;
    const int sixteen = i % kSixteensDown;
    const int64_t row_out = first_row + 16 * sixteen;
    if (first_column + tile_column >= args.columns) break;
    StoreSixteen<kIsWide>(static_cast<uint8_t*>(args.y) +
                              (first_column + tile_column) * args.rows +
                              row_out,
                          *reinterpret_cast<const uint4*>(
                              &turned[slot(tile_column, 4 * sixteen)]),
                          CountOf(row_out, args.rows));
  }
}

}  // namespace

absl::Status LaunchTransposeFloat8(const TransposeFloat8CudaArgs& args,
                                   cudaStream_t stream) {
  constexpr int64_t kMaxRows = int64_t{65535} * kTurnTile;
  constexpr int64_t kMaxColumns = int64_t{1} << 36;
  if (args.rows < 0 || args.rows > kMaxRows || args.columns < 1 ||
      args.columns > kMaxColumns || args.x_row_stride < args.columns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "transpose got [", args.rows, ", ", args.columns, "] with rows ",
        args.x_row_stride, " apart; needs zero to ", kMaxRows,
        " rows, one column or more, and rows apart"));
  }
  if (args.rows == 0) return absl::OkStatus();
  const auto is_multiple = [](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % 16 == 0;
  };
  const bool is_wide = args.rows % 16 == 0 && args.columns % 16 == 0 &&
                       args.x_row_stride % 16 == 0 && is_multiple(args.x) &&
                       is_multiple(args.y);
  const dim3 grid(
      static_cast<unsigned>((args.columns + kTurnTile - 1) / kTurnTile),
      static_cast<unsigned>((args.rows + kTurnTile - 1) / kTurnTile));
  const auto kernel =
      is_wide ? TransposeFloat8Kernel<true> : TransposeFloat8Kernel<false>;
  kernel<<<grid, kTurnThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch transpose");
}

}  // namespace millrace
