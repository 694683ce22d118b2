#include "kernels/cuda/count_not_finite.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"

namespace millrace {
namespace {

constexpr int kNumThreads = 256;
constexpr int kLoads = 4;             // 16 bytes each, under way at once.
constexpr int64_t kMaxBlocks = 2048;  // Enough for any GPU we know.
constexpr int64_t kChunk = int64_t{kNumThreads} * kLoads;  // 16-byte vectors.

// A value is not finite where all bits of kOnes are ones: those of the exponent
// and, in e4m3, of the mantissa too.
template <typename Word, Word kOnes>
__device__ __forceinline__ uint32_t CountIn(uint64_t eight_bytes) {
  uint32_t count = 0;
#pragma unroll
  for (int i = 0; i < 8 / static_cast<int>(sizeof(Word)); ++i) {
    const Word word = static_cast<Word>(
        eight_bytes >> (i * 8 * static_cast<int>(sizeof(Word))));
    count += (word & kOnes) == kOnes ? 1 : 0;
  }
  return count;
}
template <typename Word, Word kOnes>
__device__ __forceinline__ uint32_t CountIn(uint4 raw) {
  return CountIn<Word, kOnes>(raw.x | uint64_t{raw.y} << 32) +
         CountIn<Word, kOnes>(raw.z | uint64_t{raw.w} << 32);
}

// Block b reads the chunks b, b + gridDim.x, ... Limited by memory bandwidth.
template <typename Word, Word kOnes>
__global__ void __launch_bounds__(kNumThreads)
    CountNotFiniteKernel(const __grid_constant__ CountNotFiniteArgs args) {
  constexpr int64_t kPerVector = 16 / sizeof(Word);
  const Word* x = static_cast<const Word*>(args.x);
  // Values before the first multiple of 16 bytes.
  const int64_t head =
      min(args.num_values,
          static_cast<int64_t>((16 - reinterpret_cast<uintptr_t>(x) % 16) % 16 /
                               sizeof(Word)));
  const int64_t num_vectors = (args.num_values - head) / kPerVector;
  const uint4* vectors = reinterpret_cast<const uint4*>(x + head);
  uint32_t count = 0;
  for (int64_t chunk = blockIdx.x * kChunk; chunk < num_vectors;
       chunk += gridDim.x * kChunk) {
    uint4 raw[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64_t i = chunk + k * kNumThreads + threadIdx.x;
      raw[k] = i < num_vectors ? __ldcs(vectors + i) : uint4{};
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) count += CountIn<Word, kOnes>(raw[k]);
  }
  if (blockIdx.x == 0) {  // The rest around whole vectors: less than two.
    const int64_t tail = head + num_vectors * kPerVector;
    const int64_t i =
        threadIdx.x < head ? threadIdx.x : tail + (threadIdx.x - head);
    if (i < args.num_values) count += (x[i] & kOnes) == kOnes ? 1 : 0;
  }
  count = __reduce_add_sync(~0u, count);
  if (count > 0 && threadIdx.x % gpu::kWarpSize == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(args.count),
              static_cast<unsigned long long>(count));
  }
}

struct Format {
  uint64_t bytes;
  void (*kernel)(CountNotFiniteArgs);
};
Format FormatOf(ValueFormat format) {
  switch (format) {
    case ValueFormat::kFloat64:
      return {8, CountNotFiniteKernel<uint64_t, 0x7FF0'0000'0000'0000u>};
    case ValueFormat::kBfloat16:
      return {2, CountNotFiniteKernel<uint16_t, 0x7F80u>};
    case ValueFormat::kFloat8E4m3:
      return {1, CountNotFiniteKernel<uint8_t, 0x7Fu>};
    case ValueFormat::kFloat32:
      break;
  }
  return {4, CountNotFiniteKernel<uint32_t, 0x7F80'0000u>};
}

}  // namespace

absl::Status LaunchCountNotFinite(const CountNotFiniteArgs& args,
                                  cudaStream_t stream) {
  const Format format = FormatOf(args.format);
  const auto address = reinterpret_cast<uintptr_t>(args.x);
  if (args.num_values < 0 || address % format.bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "counting what is not finite got ", args.num_values, " values of ",
        format.bytes, " bytes at an address of ", address % 16,
        " modulo 16; needs zero or more, at a multiple of their size"));
  }
  if (args.num_values == 0) return absl::OkStatus();
  const int64_t num_vectors =
      args.num_values * static_cast<int64_t>(format.bytes) / 16;
  const auto num_blocks = static_cast<unsigned>(
      std::clamp<int64_t>((num_vectors + kChunk - 1) / kChunk, 1, kMaxBlocks));
  format.kernel<<<num_blocks, kNumThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch CountNotFinite");
}

}  // namespace millrace
