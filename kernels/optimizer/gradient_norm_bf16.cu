#include "kernels/optimizer/gradient_norm_bf16.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"

namespace millrace {
namespace {

constexpr int kNumThreads = 512;
constexpr int kLoads = 4;        // 16 bytes each, under way at once.
constexpr int kMaxParts = 2048;  // Enough blocks for any GPU we know.
constexpr int64_t kChunk = int64_t{kNumThreads} * kLoads;  // 16-byte vectors.

// Blocks that have delivered their sum, then the sums.
struct Workspace {
  uint64_t num_done;
  double sums[kMaxParts];
};

template <bool kIsBf16>
__device__ __forceinline__ float SumOfSquares(uint4 raw) {
  if constexpr (kIsBf16) {
    const gpu::Float8 x = gpu::Unpack8(raw);
    float low = 0.0f;
    float high = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      low += x.v[j] * x.v[j];
      high += x.v[j + 1] * x.v[j + 1];
    }
    return low + high;
  } else {
    const float x = __uint_as_float(raw.x);
    const float y = __uint_as_float(raw.y);
    const float z = __uint_as_float(raw.z);
    const float w = __uint_as_float(raw.w);
    return (x * x + y * y) + (z * z + w * w);
  }
}

// In every thread of warp 0.
__device__ double BlockSumToFirstWarp(double x, double* scratch) {
  auto warp_sum = [](double value) {
    for (int offset = gpu::kWarpSize / 2; offset > 0; offset /= 2) {
      value += __shfl_xor_sync(~0u, value, offset);
    }
    return value;
  };
  x = warp_sum(x);
  const int warp = threadIdx.x / gpu::kWarpSize;
  const int lane = threadIdx.x % gpu::kWarpSize;
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  if (warp == 0) {
    x = warp_sum(lane < kNumThreads / gpu::kWarpSize ? scratch[lane] : 0.0);
  }
  return x;
}

// Block b sums the chunks b, b + gridDim.x, ...; the block that delivers last
// adds up all sums in their order. Limited by memory bandwidth.
template <bool kIsBf16>
__global__ void __launch_bounds__(kNumThreads)
    SquaredNormKernel(const __grid_constant__ SquaredNormBf16Args args) {
  using Element = std::conditional_t<kIsBf16, uint16_t, float>;
  constexpr int kPerVector = 16 / sizeof(Element);
  const Element* x = static_cast<const Element*>(args.x);
  // Elements before the first multiple of 16 bytes.
  const int64_t head =
      min(args.num_elements,
          static_cast<int64_t>((16 - reinterpret_cast<uintptr_t>(x) % 16) % 16 /
                               sizeof(Element)));
  const int64_t num_vectors = (args.num_elements - head) / kPerVector;
  const uint4* vectors = reinterpret_cast<const uint4*>(x + head);
  double sum = 0.0;
  for (int64_t chunk = blockIdx.x * kChunk; chunk < num_vectors;
       chunk += gridDim.x * kChunk) {
    uint4 raw[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64_t i = chunk + k * kNumThreads + threadIdx.x;
      raw[k] = i < num_vectors ? __ldcs(vectors + i) : uint4{};
    }
    float partial = 0.0f;
#pragma unroll
    for (int k = 0; k < kLoads; ++k) partial += SumOfSquares<kIsBf16>(raw[k]);
    sum += partial;
  }
  if (blockIdx.x == 0) {  // The rest after whole vectors: less than two.
    const int64_t tail = head + num_vectors * kPerVector;
    const int64_t i =
        threadIdx.x < head ? threadIdx.x : tail + (threadIdx.x - head);
    if (i < args.num_elements) {
      const float value = kIsBf16 ? gpu::LowHalf(static_cast<uint32_t>(x[i]))
                                  : static_cast<float>(x[i]);
      sum += value * value;
    }
  }

  Workspace& workspace = *static_cast<Workspace*>(args.workspace);
  __shared__ double scratch[kNumThreads / gpu::kWarpSize];
  __shared__ bool is_last;
  sum = BlockSumToFirstWarp(sum, scratch);
  if (threadIdx.x == 0) {
    workspace.sums[blockIdx.x] = sum;
    __threadfence();
    is_last =
        atomicAdd(reinterpret_cast<unsigned long long*>(&workspace.num_done),
                  1ull) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  sum = 0.0;
  for (int part = threadIdx.x; part < gridDim.x; part += kNumThreads) {
    sum += __ldcg(&workspace.sums[part]);
  }
  sum = BlockSumToFirstWarp(sum, scratch);
  if (threadIdx.x == 0) {
    *args.sum = (args.overwrite ? 0.0 : *args.sum) + args.share * sum;
    workspace.num_done = 0;
  }
}

// One thread, once a step.
__global__ void GradientNormKernel(GradientNormBf16Args args) {
  const double scale = args.scale == nullptr ? 1.0 : *args.scale;
  const double norm = scale * sqrt(*args.sum);
  bool is_good = isfinite(static_cast<float>(norm)) &&
                 (args.loss == nullptr || isfinite(*args.loss));
  if (args.hold != nullptr) {
    if (!is_good) *args.hold = 1;
    is_good = *args.hold == 0;
  }
  if (args.norm != nullptr) *args.norm = static_cast<float>(norm);
  if (args.clip_factor != nullptr) {
    *args.clip_factor =
        is_good ? static_cast<float>(scale *
                                     fmin(1.0, args.max_norm / (norm + 1e-6)))
                : 0.0f;
  }
  if (args.skip != nullptr) *args.skip = is_good ? 0 : 1;
}

}  // namespace

int64_t SquaredNormBf16WorkspaceBytes() { return sizeof(Workspace); }

absl::Status LaunchSquaredNormBf16(const SquaredNormBf16Args& args,
                                   cudaStream_t stream) {
  const int64_t element_bytes = args.is_bf16 ? 2 : 4;
  if (args.num_elements < 0 ||
      reinterpret_cast<uintptr_t>(args.x) % element_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "squared norm got ", args.num_elements, " elements of ", element_bytes,
        " bytes at an address of ", reinterpret_cast<uintptr_t>(args.x) % 16,
        " modulo 16; needs zero or more, at a multiple of their "
        "size"));
  }
  if (args.num_elements == 0 && !args.overwrite) return absl::OkStatus();
  const int64_t num_vectors = args.num_elements * element_bytes / 16;
  const int64_t num_chunks = (num_vectors + kChunk - 1) / kChunk;
  const int num_parts =
      static_cast<int>(std::clamp<int64_t>(num_chunks, 1, kMaxParts));
  const auto kernel =
      args.is_bf16 ? SquaredNormKernel<true> : SquaredNormKernel<false>;
  kernel<<<num_parts, kNumThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch SquaredNorm");
}

absl::Status LaunchGradientNormBf16(const GradientNormBf16Args& args,
                                    cudaStream_t stream) {
  if (!(args.max_norm > 0.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient norm got a maximum of ", args.max_norm,
                     "; needs one above "
                     "zero"));
  }
  GradientNormKernel<<<1, 1, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch GradientNorm");
}

}  // namespace millrace
