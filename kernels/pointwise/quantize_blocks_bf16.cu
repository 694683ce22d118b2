#include "kernels/pointwise/quantize_blocks_bf16.h"

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/amax.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/transpose_bytes.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/pointwise/cast.h"

namespace millrace {
namespace {

using gpu::Float8;

// A block of threads takes a square of x. A thread has a patch of 4 rows and 8
// columns, so that 16 neighbours in a warp have 4 whole rows.
constexpr int kSide = static_cast<int>(kQuantizeBlock);
constexpr int kPatchRows = 4;
constexpr int kPatchColumns = 8;
constexpr int kAcross = kSide / kPatchColumns;
constexpr int kDown = kSide / kPatchRows;
constexpr int kSquareThreads = kAcross * kDown;
constexpr int kSquareWarps = kSquareThreads / gpu::kWarpSize;
constexpr int kPairsAcross = kSide / 2;

struct SquareParams {
  uint8_t* y;
  float* units;
  uint8_t* y_transposed;
  float* units_transposed;
  const uint16_t* x;
  int64_t rows, columns;
};

__device__ __forceinline__ float ScaleOf(uint32_t bf16_magnitude) {
  return Float8Scale(__uint_as_float(bf16_magnitude << 16),
                     Float8Format::kE4m3);
}
__device__ __forceinline__ float UnitOf(uint32_t bf16_magnitude) {
  return Float8Unit(__uint_as_float(bf16_magnitude << 16), Float8Format::kE4m3);
}

__device__ __forceinline__ uint32_t EncodeFour(float a, float b, float c,
                                               float d) {
  const uint32_t low =
      __nv_cvt_float2_to_fp8x2(float2{a, b}, __NV_SATFINITE, __NV_E4M3);
  const uint32_t high =
      __nv_cvt_float2_to_fp8x2(float2{c, d}, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

// The largest magnitudes of the patch's four rows over all 128 columns, two in
// a word.
__device__ __forceinline__ void LargestOfRows(const uint4 (&x)[kPatchRows],
                                              uint32_t (&largest)[2]) {
  uint32_t of_row[kPatchRows];
#pragma unroll
  for (int i = 0; i < kPatchRows; ++i) {
    const uint32_t pairs = gpu::LargerPair(0, x[i]);
    of_row[i] = max(pairs & 0xFFFF, pairs >> 16);
  }
  largest[0] = of_row[0] | of_row[1] << 16;
  largest[1] = of_row[2] | of_row[3] << 16;
#pragma unroll
  for (int offset = kAcross / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (uint32_t& two : largest) {
      two = __vmaxu2(two, __shfl_xor_sync(~0u, two, offset));
    }
  }
}

// The largest magnitudes of the patch's eight columns over all 128 rows, two in
// a word. `maxima` is shared memory for one word a warp and pair of columns;
// all threads take part.
__device__ __forceinline__ uint4
LargestOfColumns(const uint4 (&x)[kPatchRows],
                 uint32_t (&maxima)[kSquareWarps * kPairsAcross]) {
  const int lane = threadIdx.x % gpu::kWarpSize;
  const int warp = threadIdx.x / gpu::kWarpSize;
  const int across = threadIdx.x % kAcross;
  uint4 largest = {};
#pragma unroll
  for (int i = 0; i < kPatchRows; ++i) {
    largest = {
        gpu::LargerPair(largest.x, x[i].x), gpu::LargerPair(largest.y, x[i].y),
        gpu::LargerPair(largest.z, x[i].z), gpu::LargerPair(largest.w, x[i].w)};
  }
  auto larger = [](uint32_t word) {
    return __vmaxu2(word, __shfl_xor_sync(~0u, word, kAcross));
  };
  largest = {larger(largest.x), larger(largest.y), larger(largest.z),
             larger(largest.w)};
  if (lane < kAcross) {
    *reinterpret_cast<uint4*>(&maxima[warp * kPairsAcross + 4 * across]) =
        largest;
  }
  __syncthreads();
  if (threadIdx.x < kPairsAcross) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < kSquareWarps; ++i) {
      word = __vmaxu2(word, maxima[i * kPairsAcross + threadIdx.x]);
    }
    maxima[threadIdx.x] = word;  // Of its own column of words.
  }
  __syncthreads();
  return *reinterpret_cast<const uint4*>(&maxima[4 * across]);
}

// A thread's rows of bytes, turned and passed through shared memory, so that
// columns are written 128 bytes at a time.
__device__ __forceinline__ void StoreTransposed(
    const uint2 (&bytes)[kPatchRows], const SquareParams& p, int64_t first_row,
    int64_t first_column, uint32_t (&turned)[kSide * kDown]) {
  const int across = threadIdx.x % kAcross;
  const int down = threadIdx.x / kAcross;
  // [column][patch down], the patches permuted, in pairs, so that a warp's
  // stores and loads meet no bank conflicts.
  auto slot = [](int column, int patch) {
    return column * kDown + (patch ^ (2 * (column / kPatchColumns) % kDown));
  };
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    uint32_t square[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) square[i] = part == 0 ? bytes[i].x : bytes[i].y;
    gpu::TransposeBytes(square);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      turned[slot(kPatchColumns * across + 4 * part + j, down)] = square[j];
    }
  }
  __syncthreads();
  // Now a thread takes eight rows of a column.
  constexpr int kEightsDown = kSide / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kSide * kEightsDown; i += kSquareThreads) {
    const int column = i / kEightsDown;
    const int eight = i % kEightsDown;
    __stcs(reinterpret_cast<uint2*>(p.y_transposed +
                                    (first_column + column) * p.rows +
                                    first_row + 8 * eight),
           *reinterpret_cast<const uint2*>(&turned[slot(column, 2 * eight)]));
  }
}

// Threads read their patches, find the largest magnitudes of rows, columns or
// the square, and encode. Limited by memory bandwidth.
template <bool kIsSquare>
__global__ void __launch_bounds__(kSquareThreads, 2)
    QuantizeBlocksKernel(const __grid_constant__ SquareParams p) {
  __shared__ alignas(16) uint32_t maxima[kSquareWarps * kPairsAcross];
  __shared__ alignas(16) uint32_t turned[kSide * kDown];
  const int across = threadIdx.x % kAcross;
  const int down = threadIdx.x / kAcross;
  const int64_t first_row = int64_t{blockIdx.y} * kSide;
  const int64_t first_column = int64_t{blockIdx.x} * kSide;
  const int64_t row = first_row + kPatchRows * down;
  const int64_t column = first_column + kPatchColumns * across;

  uint4 x[kPatchRows];
#pragma unroll
  for (int i = 0; i < kPatchRows; ++i) {
    x[i] = gpu::Load16Streaming(p.x + (row + i) * p.columns + column);
  }
  uint32_t of_square = 0;
  if constexpr (kIsSquare) {
    uint32_t largest = 0;
#pragma unroll
    for (const uint4& eight : x) largest = gpu::LargerPair(largest, eight);
    largest = gpu::LargestOfWarp(largest);  // In the upper half.
    if (threadIdx.x % gpu::kWarpSize == 0) {
      maxima[threadIdx.x / gpu::kWarpSize] = largest;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSquareWarps; ++i) {
      of_square = max(of_square, maxima[i]);
    }
    of_square >>= 16;
    if (threadIdx.x == 0) {
      p.units[int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = UnitOf(of_square);
    }
  }
  uint2 bytes[kPatchRows];
  if (kIsSquare || p.y != nullptr) {
    uint32_t largest[2];
    if constexpr (!kIsSquare) LargestOfRows(x, largest);
#pragma unroll
    for (int i = 0; i < kPatchRows; ++i) {
      const uint32_t magnitude =
          kIsSquare ? of_square : largest[i / 2] >> (16 * (i % 2)) & 0xFFFF;
      const float scale = ScaleOf(magnitude);
      Float8 value = gpu::Unpack8(x[i]);
#pragma unroll
      for (float& v : value.v) v *= scale;
      bytes[i] = {EncodeFour(value.v[0], value.v[1], value.v[2], value.v[3]),
                  EncodeFour(value.v[4], value.v[5], value.v[6], value.v[7])};
      if (p.y != nullptr) {
        __stcs(reinterpret_cast<uint2*>(p.y + (row + i) * p.columns + column),
               bytes[i]);
      }
      if (!kIsSquare && across == i) {
        p.units[int64_t{blockIdx.x} * p.rows + row + i] = UnitOf(magnitude);
      }
    }
  }
  if (p.y_transposed == nullptr) return;
  if constexpr (!kIsSquare) {
    const uint4 largest = LargestOfColumns(x, maxima);
    const uint32_t words[4] = {largest.x, largest.y, largest.z, largest.w};
    float scale[kPatchColumns];
#pragma unroll
    for (int j = 0; j < kPatchColumns; ++j) {
      const uint32_t magnitude = words[j / 2] >> (16 * (j % 2)) & 0xFFFF;
      scale[j] = ScaleOf(magnitude);
      if (down == j) {
        p.units_transposed[int64_t{blockIdx.y} * p.columns + column + j] =
            UnitOf(magnitude);
      }
    }
#pragma unroll
    for (int i = 0; i < kPatchRows; ++i) {
      Float8 value = gpu::Unpack8(x[i]);
#pragma unroll
      for (int j = 0; j < kPatchColumns; ++j) value.v[j] *= scale[j];
      bytes[i] = {EncodeFour(value.v[0], value.v[1], value.v[2], value.v[3]),
                  EncodeFour(value.v[4], value.v[5], value.v[6], value.v[7])};
    }
  }
  StoreTransposed(bytes, p, first_row, first_column, turned);
}

template <bool kIsSquare>
absl::Status LaunchSquares(const char* name, const SquareParams& p,
                           cudaStream_t stream) {
  RETURN_IF_ERROR(CheckQuantizeBlocks(name, p.rows, p.columns));
  constexpr int64_t kMostRows = int64_t{65535} * kSide;
  constexpr int64_t kMostColumns = int64_t{1} << 36;
  if (p.rows > kMostRows || p.columns > kMostColumns) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " got [", p.rows, ", ", p.columns, "]; at most ",
                     kMostRows, " rows and ", kMostColumns, " columns"));
  }
  for (const void* address :
       {static_cast<const void*>(p.x), static_cast<const void*>(p.y),
        static_cast<const void*>(p.y_transposed)}) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": addresses are multiples of 16 bytes; one is not"));
    }
  }
  const dim3 grid(static_cast<unsigned>(p.columns / kSide),
                  static_cast<unsigned>(p.rows / kSide));
  QuantizeBlocksKernel<kIsSquare><<<grid, kSquareThreads, 0, stream>>>(p);
  return CudaStatus(cudaGetLastError(), "launch quantize blocks");
}

}  // namespace

absl::Status LaunchQuantizeBlocksBf16(const QuantizeBlocksBf16Args& args,
                                      cudaStream_t stream) {
  return LaunchSquares<false>(
      "quantize blocks",
      {.y = static_cast<uint8_t*>(args.y),
       .units = args.units,
       .y_transposed = static_cast<uint8_t*>(args.y_transposed),
       .units_transposed = args.units_transposed,
       .x = static_cast<const uint16_t*>(args.x),
       .rows = args.rows,
       .columns = args.columns},
      stream);
}

absl::Status LaunchQuantizeSquaresBf16(const QuantizeSquaresBf16Args& args,
                                       cudaStream_t stream) {
  return LaunchSquares<true>(
      "quantize squares",
      {.y = static_cast<uint8_t*>(args.y),
       .units = args.units,
       .y_transposed = static_cast<uint8_t*>(args.y_transposed),
       .units_transposed = nullptr,
       .x = static_cast<const uint16_t*>(args.x),
       .rows = args.rows,
       .columns = args.columns},
      stream);
}

}  // namespace millrace
