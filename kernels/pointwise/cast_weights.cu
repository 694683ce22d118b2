#include "kernels/pointwise/cast_weights.h"

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/amax.cuh"
#include "kernels/cuda/four.cuh"
#include "kernels/cuda/status.h"
#include "kernels/pointwise/cast.h"

namespace millrace {
namespace {

using gpu::Four;

constexpr int kThreads = 256;
// A thread takes four fours, neighbours of other threads', so that enough loads
// are under way.
constexpr int kFours = 4;
constexpr int kPerBlock = 4 * kFours * kThreads;

// The bits of magnitudes rise with them, NaN above all.
__device__ __forceinline__ uint32_t MagnitudeBits(float x) {
  return __float_as_uint(x) & 0x7FFFFFFFu;
}

template <bool kIsAligned>
__device__ __forceinline__ Four LoadUpTo(const float* x, int64_t index,
                                         int64_t end) {
  return kIsAligned && index + 4 <= end
             ? gpu::LoadFour<false>(x, index)
             : gpu::LoadPartOfFour<false>(x, index, 0, end);
}

// The first element of four `i` of a thread.
__device__ __forceinline__ int64_t IndexOf(int i) {
  return int64_t{blockIdx.x} * kPerBlock + 4 * (i * kThreads + threadIdx.x);
}

// A thread takes sixteen elements. Limited by memory bandwidth.
template <bool kIsAligned>
__global__ void __launch_bounds__(kThreads)
    WeightAmaxKernel(const __grid_constant__ WeightAmaxArgs args) {
  Four x[kFours];
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    x[i] = LoadUpTo<kIsAligned>(args.x, IndexOf(i), args.num_elements);
  }
  uint32_t largest = 0;
#pragma unroll
  for (const Four& four : x) {
#pragma unroll
    for (const float v : four.v) largest = max(largest, MagnitudeBits(v));
  }
  largest = __reduce_max_sync(~0u, largest);
  __shared__ uint32_t of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  if (threadIdx.x % gpu::kWarpSize == 0) atomicMax(&of_block, largest);
  __syncthreads();
  if (threadIdx.x == 0) gpu::RaiseAmaxBits(args.amax, of_block);
}

// The largest of all amaxes, in every thread of the block.
__device__ __forceinline__ float LargestAmax(const QuantizeWeightArgs& args) {
  __shared__ uint32_t of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < args.num_amaxes; i += kThreads) {
    atomicMax(&of_block, MagnitudeBits(args.amaxes[i * args.amax_stride]));
  }
  __syncthreads();
  return __uint_as_float(of_block);
}

// A thread takes sixteen elements. Limited by memory bandwidth.
template <bool kIsAligned>
__global__ void __launch_bounds__(kThreads)
    QuantizeWeightKernel(const __grid_constant__ QuantizeWeightArgs args) {
  Four x[kFours];
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    x[i] = LoadUpTo<kIsAligned>(args.x, IndexOf(i), args.num_elements);
  }
  const float amax = LargestAmax(args);
  const float scale = Float8Scale(amax, Float8Format::kE4m3);
  if ((blockIdx.x | threadIdx.x) == 0) {
    *args.unit = Float8Unit(amax, Float8Format::kE4m3);
  }
  auto* const y = static_cast<uint8_t*>(args.y);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int64_t index = IndexOf(i);
    const auto pair = [&](int j) -> uint32_t {
      return __nv_cvt_float2_to_fp8x2(
          float2{x[i].v[j] * scale, x[i].v[j + 1] * scale}, __NV_SATFINITE,
          __NV_E4M3);
    };
    const uint32_t bytes = pair(0) | pair(2) << 16;
    if (kIsAligned && index + 4 <= args.num_elements) {
      *reinterpret_cast<uint32_t*>(y + index) = bytes;
      continue;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (index + j < args.num_elements) {
        y[index + j] = static_cast<uint8_t>(bytes >> (8 * j));
      }
    }
  }
}

bool IsAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

unsigned NumBlocks(int64_t num_elements) {
  return static_cast<unsigned>((num_elements + kPerBlock - 1) / kPerBlock);
}

absl::Status CheckElements(const char* kernel, int64_t num_elements) {
  constexpr int64_t kLimit = int64_t{1} << 40;
  if (num_elements >= 0 && num_elements < kLimit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kernel, " got ", num_elements,
                   " elements; needs zero or more, less than 2^40"));
}

}  // namespace

absl::Status LaunchWeightAmax(const WeightAmaxArgs& args, cudaStream_t stream) {
  if (absl::Status status = CheckElements("weight amax", args.num_elements);
      !status.ok()) {
    return status;
  }
  if (args.num_elements == 0) return absl::OkStatus();
  const auto kernel =
      IsAligned(args.x) ? WeightAmaxKernel<true> : WeightAmaxKernel<false>;
  kernel<<<NumBlocks(args.num_elements), kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch weight amax");
}

absl::Status LaunchQuantizeWeight(const QuantizeWeightArgs& args,
                                  cudaStream_t stream) {
  if (absl::Status status = CheckElements("quantize weight", args.num_elements);
      !status.ok()) {
    return status;
  }
  if (args.num_amaxes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "quantize weight got ", args.num_amaxes, " amaxes; needs one or more"));
  }
  // One block at least, for the unit.
  const unsigned num_blocks = std::max(1u, NumBlocks(args.num_elements));
  const auto kernel = IsAligned(args.x) && IsAligned(args.y)
                          ? QuantizeWeightKernel<true>
                          : QuantizeWeightKernel<false>;
  kernel<<<num_blocks, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch quantize weight");
}

}  // namespace millrace
