#include "kernels/cuda/hash_words.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/occupancy.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"

namespace millrace {
namespace {

constexpr int kNumThreads = 256;
constexpr int kLoads = 4;         // 16 bytes each, under way at once.
constexpr int kMaxBlocks = 2048;  // Enough for any GPU we know.
constexpr int64_t kChunk = int64_t{kNumThreads} * kLoads;  // 16-byte vectors.

__device__ __forceinline__ uint64_t Pair(uint32_t low, uint32_t high) {
  return low | static_cast<uint64_t>(high) << 32;
}

__device__ __forceinline__ uint64_t HashVector(uint64_t place, uint4 raw) {
  return HashWord(place, Pair(raw.x, raw.y)) +
         HashWord(place + 1, Pair(raw.z, raw.w));
}

// Sums of integers do not depend on their order, so blocks add as they come.
__global__ void __launch_bounds__(kNumThreads, gpu::FullBlocks(kNumThreads))
    HashWordsKernel(const __grid_constant__ HashWordsArgs args) {
  const auto* vectors = static_cast<const uint4*>(args.data);
  const int64_t num_vectors = args.num_bytes / 16;
  uint64_t sum = 0;
  for (int64_t chunk = blockIdx.x; chunk * kChunk < num_vectors;
       chunk += gridDim.x) {
    const int64_t begin = chunk * kChunk + threadIdx.x;
    uint4 raw[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t v = begin + i * kNumThreads;
      if (v < num_vectors) raw[i] = gpu::Load16Streaming(vectors + v);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t v = begin + i * kNumThreads;
      if (v < num_vectors) {
        sum +=
            HashVector(args.first_place + 2 * static_cast<uint64_t>(v), raw[i]);
      }
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    const auto* words = static_cast<const uint32_t*>(args.data);
    const int64_t num_words = args.num_bytes / 4;
    for (int64_t w = 4 * num_vectors; w < num_words; w += 2) {
      const uint32_t high = w + 1 < num_words ? words[w + 1] : 0;
      sum += HashWord(args.first_place + static_cast<uint64_t>(w / 2),
                      Pair(words[w], high));
    }
  }
#pragma unroll
  for (int offset = gpu::kWarpSize / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(~0u, sum, offset);
  }
  if (threadIdx.x % gpu::kWarpSize == 0) {
    // CUDA's atomics know this name of 64 bits alone.
    using Word = unsigned long long;  // NOLINT(google-runtime-int)
    atomicAdd(reinterpret_cast<Word*>(args.sum), static_cast<Word>(sum));
  }
}

}  // namespace

absl::Status LaunchHashWords(const HashWordsArgs& args, cudaStream_t stream) {
  if (args.num_bytes < 0 || args.num_bytes % 4 != 0 ||
      reinterpret_cast<uintptr_t>(args.data) % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a hash of ", args.num_bytes, " bytes at ",
                     absl::Hex(reinterpret_cast<uintptr_t>(args.data)),
                     "; needs a multiple of 4 bytes at a multiple of 16"));
  }
  if (args.num_bytes == 0) return absl::OkStatus();
  const int64_t num_chunks = (args.num_bytes / 16 + kChunk - 1) / kChunk;
  const auto num_blocks =
      static_cast<unsigned>(std::clamp<int64_t>(num_chunks, 1, kMaxBlocks));
  HashWordsKernel<<<num_blocks, kNumThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch HashWords");
}

}  // namespace millrace
