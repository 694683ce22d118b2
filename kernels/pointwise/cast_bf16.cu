#include "kernels/pointwise/cast_bf16.h"

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/amax.cuh"
#include "kernels/cuda/four.cuh"
#include "kernels/cuda/random.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/transpose_bytes.cuh"

namespace millrace {
namespace {

using gpu::Float8;
using gpu::Four;

constexpr int kNumThreads = 256;

// A thread takes four elements. Limited by memory bandwidth.
template <bool kIsAligned>
__global__ void __launch_bounds__(kNumThreads)
    NearestKernel(const __grid_constant__ CastToBf16Args args) {
  const int64_t index = 4 * (int64_t{blockIdx.x} * kNumThreads + threadIdx.x);
  const bool is_whole = kIsAligned && index + 4 <= args.num_elements;
  const Four x = is_whole ? gpu::LoadFour<false>(args.x, index)
                          : gpu::LoadPartOfFour<false>(args.x, index, 0,
                                                       args.num_elements);
  const uint2 raw = {gpu::PackPair(x.v[0], x.v[1]),
                     gpu::PackPair(x.v[2], x.v[3])};
  uint16_t* y = static_cast<uint16_t*>(args.y);
  if (is_whole) {
    gpu::StoreFour(y, index, raw);
  } else {
    gpu::StorePartOfFour(y, index, raw, 0, args.num_elements);
  }
}

// A thread takes eight elements, whose bits one block of Philox yields. Limited
// by memory bandwidth, nearly by arithmetic.
template <bool kIsAligned>
__global__ void __launch_bounds__(kNumThreads)
    StochasticKernel(const __grid_constant__ CastToBf16Args args) {
  const int64_t index = 8 * (int64_t{blockIdx.x} * kNumThreads + threadIdx.x);
  const bool is_whole = kIsAligned && index + 8 <= args.num_elements;
  Four x[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t first = index + 4 * half;
    if (is_whole) {
      const float4 raw = *reinterpret_cast<const float4*>(args.x + first);
      x[half] = {raw.x, raw.y, raw.z, raw.w};
    } else {
      x[half] = gpu::LoadPartOfFour<false>(args.x, first, 0, args.num_elements);
    }
  }
  const uint4 bits =
      gpu::RandomBits(args.seed, args.stream,
                      static_cast<uint64_t>(args.first_index + index) / 8);
  auto pair = [](float low, float high, uint32_t word) {
    return gpu::StochasticPair(low, high, word, word >> 16);
  };
  const uint4 raw = {
      pair(x[0].v[0], x[0].v[1], bits.x), pair(x[0].v[2], x[0].v[3], bits.y),
      pair(x[1].v[0], x[1].v[1], bits.z), pair(x[1].v[2], x[1].v[3], bits.w)};
  uint16_t* y = static_cast<uint16_t*>(args.y);
  if (is_whole) {
    gpu::Store16Streaming(y + index, raw);
  } else {
    gpu::StorePartOfFour(y, index, {raw.x, raw.y}, 0, args.num_elements);
    gpu::StorePartOfFour(y, index + 4, {raw.z, raw.w}, 0, args.num_elements);
  }
}

// A thread takes four elements. Limited by memory bandwidth.
template <bool kIsAligned>
__global__ void __launch_bounds__(kNumThreads)
    WidenKernel(const __grid_constant__ CastToFloatArgs args) {
  const int64_t index = 4 * (int64_t{blockIdx.x} * kNumThreads + threadIdx.x);
  if (kIsAligned && index + 4 <= args.num_elements) {
    gpu::StoreFour(args.y, index, gpu::LoadFour<true>(args.x, index));
  } else {
    gpu::StorePartOfFour(
        args.y, index,
        gpu::LoadPartOfFour<true>(args.x, index, 0, args.num_elements), 0,
        args.num_elements);
  }
}

// 8-bit floats are made in tiles. A thread has a patch of 4 rows x 8 columns,
// few enough registers that the loads of one block run under the work of
// others.
constexpr int kPatchRows = 4;
constexpr int kPatchColumns = 8;
constexpr int kTileRows = 128;
constexpr int kTileColumns = 64;
constexpr int kAcross = kTileColumns / kPatchColumns;
constexpr int kDown = kTileRows / kPatchRows;
constexpr int kTileThreads = kAcross * kDown;

template <Float8Format kFormat>
__device__ __forceinline__ uint32_t EncodeFour(float a, float b, float c,
                                               float d) {
  constexpr __nv_fp8_interpretation_t kKind =
      kFormat == Float8Format::kE4m3 ? __NV_E4M3 : __NV_E5M2;
  const uint32_t low =
      __nv_cvt_float2_to_fp8x2(float2{a, b}, __NV_SATFINITE, kKind);
  const uint32_t high =
      __nv_cvt_float2_to_fp8x2(float2{c, d}, __NV_SATFINITE, kKind);
  return low | high << 16;
}

// Eight bytes, of which `count` are stored. kIsAligned: to a multiple of eight.
template <bool kIsAligned>
__device__ __forceinline__ void StoreBytes(uint8_t* address, uint2 raw,
                                           int count) {
  if (kIsAligned && count >= 8) {
    __stcs(reinterpret_cast<uint2*>(address), raw);
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t word = j < 4 ? raw.x : raw.y;
    if (j < count) address[j] = static_cast<uint8_t>(word >> (8 * (j % 4)));
  }
}

__device__ __forceinline__ float ScaleOf(const QuantizeFloat8Bf16Args& args) {
  if (args.scale_of_amax != nullptr) {
    return Float8Scale(*args.scale_of_amax, args.format);
  }
  return args.scale == nullptr ? 1.0f : *args.scale;
}

// A block takes a tile: its threads read and encode their patches, write the
// rows, turn the bytes and pass them through shared memory, so that columns are
// written kTileRows bytes at a time. Limited by memory bandwidth.
template <Float8Format kFormat, bool kIsAligned>
__global__ void __launch_bounds__(kTileThreads)
    QuantizeKernel(const __grid_constant__ QuantizeFloat8Bf16Args args) {
  const int across = threadIdx.x % kAcross;
  const int down = threadIdx.x / kAcross;
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows;
  const int64_t first_column = int64_t{blockIdx.x} * kTileColumns;
  const int64_t row = first_row + kPatchRows * down;
  const int64_t column = first_column + kPatchColumns * across;
  const int num_columns =
      static_cast<int>(max(int64_t{0}, min(int64_t{8}, args.columns - column)));

  uint4 x[kPatchRows];
#pragma unroll
  for (int i = 0; i < kPatchRows; ++i) {
    const uint16_t* address = static_cast<const uint16_t*>(args.x) +
                              (row + i) * args.x_row_stride + column;
    x[i] = {};
    if (row + i >= args.rows || num_columns == 0) continue;
    if constexpr (kIsAligned) {
      x[i] = gpu::Load16Streaming(address);
    } else {
      x[i] = gpu::Pack8(gpu::LoadEight<false>(address, num_columns));
    }
  }
  const float scale = ScaleOf(args);
  uint32_t largest_pair = 0;
  uint2 bytes[kPatchRows];
#pragma unroll
  for (int i = 0; i < kPatchRows; ++i) {
    largest_pair = gpu::LargerPair(largest_pair, x[i]);
    Float8 value = gpu::Unpack8(x[i]);
#pragma unroll
    for (float& v : value.v) v *= scale;
    bytes[i] = {
        EncodeFour<kFormat>(value.v[0], value.v[1], value.v[2], value.v[3]),
        EncodeFour<kFormat>(value.v[4], value.v[5], value.v[6], value.v[7])};
    if (args.y != nullptr && row + i < args.rows) {
      StoreBytes<kIsAligned>(
          static_cast<uint8_t*>(args.y) + (row + i) * args.columns + column,
          bytes[i], num_columns);
    }
  }
  if (args.amax != nullptr) {
    gpu::RaiseAmax<kTileThreads>(args.amax, largest_pair);
  }
  if (args.unit != nullptr && (blockIdx.x | blockIdx.y | threadIdx.x) == 0) {
    *args.unit = Float8Unit(*args.scale_of_amax, args.format);
  }
  if (args.y_transposed == nullptr) return;

  // [column of the tile][patch down], the patches permuted, in pairs, so that
  // stores of a warp meet few bank conflicts and loads none.
  __shared__ alignas(8) uint32_t turned[kTileColumns * kDown];
  auto slot = [](int tile_column, int patch) {
    return tile_column * kDown +
           (patch ^ (2 * (tile_column / kPatchColumns) % kDown));
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
  constexpr int kEightsDown = kTileRows / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kTileColumns * kEightsDown; i += kTileThreads) {
    const int tile_column = i / kEightsDown;
    const int eight = i % kEightsDown;
    const int64_t row_out = first_row + 8 * eight;
    const int num_rows =
        static_cast<int>(max(int64_t{0}, min(int64_t{8}, args.rows - row_out)));
    if (first_column + tile_column >= args.columns) break;
    StoreBytes<kIsAligned>(
        static_cast<uint8_t*>(args.y_transposed) +
            (first_column + tile_column) * args.rows + row_out,
        *reinterpret_cast<const uint2*>(&turned[slot(tile_column, 2 * eight)]),
        num_rows);
  }
}

bool AreAligned(std::initializer_list<const void*> buffers) {
  return std::all_of(buffers.begin(), buffers.end(), [](const void* buffer) {
    return reinterpret_cast<uintptr_t>(buffer) % 16 == 0;
  });
}

unsigned NumBlocks(int64_t num_elements, int per_thread) {
  const int64_t per_block = int64_t{kNumThreads} * per_thread;
  return static_cast<unsigned>((num_elements + per_block - 1) / per_block);
}

absl::Status CheckElements(const char* kernel, int64_t num_elements) {
  constexpr int64_t kLimit = int64_t{1} << 40;
  if (num_elements >= 0 && num_elements < kLimit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kernel, " got ", num_elements,
                   " elements; needs zero or more, less than 2^40"));
}

absl::Status CheckScales(const QuantizeFloat8Bf16Args& args) {
  const bool is_current = args.scale_of_amax != nullptr;
  if (is_current ? args.scale == nullptr && args.amax != args.scale_of_amax
                 : args.unit == nullptr) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "quantize takes scale or scale_of_amax, not both, a unit with "
      "scale_of_amax only, and amax apart from it");
}

}  // namespace

absl::Status LaunchCastToBf16(const CastToBf16Args& args, cudaStream_t stream) {
  if (absl::Status status = CheckElements("cast to bf16", args.num_elements);
      !status.ok()) {
    return status;
  }
  if (args.stochastic && (args.first_index < 0 || args.first_index % 8 != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cast to bf16 got first_index ", args.first_index,
                     "; needs a multiple of eight, zero or more"));
  }
  if (args.num_elements == 0) return absl::OkStatus();
  const bool is_aligned = AreAligned({args.y, args.x});
  if (args.stochastic) {
    const auto kernel =
        is_aligned ? StochasticKernel<true> : StochasticKernel<false>;
    kernel<<<NumBlocks(args.num_elements, 8), kNumThreads, 0, stream>>>(args);
  } else {
    const auto kernel = is_aligned ? NearestKernel<true> : NearestKernel<false>;
    kernel<<<NumBlocks(args.num_elements, 4), kNumThreads, 0, stream>>>(args);
  }
  return CudaStatus(cudaGetLastError(), "launch cast to bf16");
}

absl::Status LaunchCastToFloat(const CastToFloatArgs& args,
                               cudaStream_t stream) {
  if (absl::Status status = CheckElements("cast to fp32", args.num_elements);
      !status.ok()) {
    return status;
  }
  if (args.num_elements == 0) return absl::OkStatus();
  const auto kernel =
      AreAligned({args.y, args.x}) ? WidenKernel<true> : WidenKernel<false>;
  kernel<<<NumBlocks(args.num_elements, 4), kNumThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch cast to fp32");
}

absl::Status LaunchQuantizeFloat8Bf16(const QuantizeFloat8Bf16Args& args,
                                      cudaStream_t stream) {
  RETURN_IF_ERROR(CheckScales(args));
  constexpr int64_t kMaxRows = int64_t{65535} * kTileRows;
  constexpr int64_t kMaxColumns = int64_t{1} << 36;
  if (args.rows < 0 || args.rows > kMaxRows || args.columns < 1 ||
      args.columns > kMaxColumns || args.x_row_stride < args.columns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "quantize got [", args.rows, ", ", args.columns, "] with rows ",
        args.x_row_stride, " apart; needs zero to ", kMaxRows,
        " rows, one column or more, and rows apart"));
  }
  if (args.rows == 0) return absl::OkStatus();
  const bool is_aligned = args.rows % 8 == 0 && args.columns % 8 == 0 &&
                          args.x_row_stride % 8 == 0 &&
                          AreAligned({args.x, args.y, args.y_transposed});
  const dim3 grid(
      static_cast<unsigned>((args.columns + kTileColumns - 1) / kTileColumns),
      static_cast<unsigned>((args.rows + kTileRows - 1) / kTileRows));
  auto run = [&]<Float8Format kFormat>() {
    const auto kernel = is_aligned ? QuantizeKernel<kFormat, true>
                                   : QuantizeKernel<kFormat, false>;
    kernel<<<grid, kTileThreads, 0, stream>>>(args);
  };
  if (args.format == Float8Format::kE4m3) {
    run.operator()<Float8Format::kE4m3>();
  } else {
    run.operator()<Float8Format::kE5m2>();
  }
  return CudaStatus(cudaGetLastError(), "launch quantize");
}

}  // namespace millrace
