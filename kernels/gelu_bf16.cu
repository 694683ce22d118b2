#include <cuda_runtime.h>

#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/status.h"
#include "kernels/gelu_bf16.h"

namespace millrace {
namespace {

using gpu::Float8;

constexpr int kNumThreads = 256;
constexpr int64_t kPerBlock = int64_t{8} * kNumThreads;

struct Share {
  float p;        // P(x) of gelu.h.
  float p_slope;  // P'(x).
};

// The tanh form through (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)), which does not
// cancel where P is small.
template <GeluForm kForm>
__device__ __forceinline__ Share ShareOf(float x) {
  if constexpr (kForm == GeluForm::kErf) {
    constexpr float kRootHalf = 0.70710678f;
    constexpr float kDensityAtZero = 0.39894228f;  // 1 / sqrt(2 pi).
    return {0.5f * erfcf(-kRootHalf * x),
            kDensityAtZero * __expf(-0.5f * x * x)};
  } else {
    constexpr float kFactor = 1.59576912f;  // 2 sqrt(2 / pi).
    constexpr float kCubic = 0.044715f * kFactor;
    const float square = x * x;
    const float p =
        __fdividef(1.0f, 1.0f + __expf(-x * (kFactor + kCubic * square)));
    return {p, p * (1.0f - p) * (kFactor + 3.0f * kCubic * square)};
  }
}

// Where a thread's eight elements begin, and how many of them exist.
struct Place {
  int64_t index;
  int count;
};
__device__ __forceinline__ Place FindPlace(int64_t num_elements) {
  const int64_t index = blockIdx.x * kPerBlock + int64_t{8} * threadIdx.x;
  return {index, static_cast<int>(min(int64_t{8}, num_elements - index))};
}

// A thread takes eight elements. Limited by memory bandwidth, the erf form by
// arithmetic.
template <GeluForm kForm, bool kIsAligned>
__global__ void __launch_bounds__(kNumThreads)
    GeluForwardKernel(const __grid_constant__ GeluForwardBf16Args args) {
  const auto [index, count] = FindPlace(args.num_elements);
  Float8 x = gpu::LoadEight<kIsAligned>(
      static_cast<const uint16_t*>(args.x) + index, count);
#pragma unroll
  for (float& value : x.v) value *= ShareOf<kForm>(value).p;
  gpu::StoreEight<kIsAligned>(static_cast<uint16_t*>(args.y) + index, x, count);
}

// Likewise.
template <GeluForm kForm, bool kIsAligned>
__global__ void __launch_bounds__(kNumThreads)
    GeluBackwardKernel(const __grid_constant__ GeluBackwardBf16Args args) {
  const auto [index, count] = FindPlace(args.num_elements);
  Float8 x = gpu::LoadEight<kIsAligned>(
      static_cast<const uint16_t*>(args.x) + index, count);
  Float8 d = gpu::LoadEight<kIsAligned>(
      static_cast<const uint16_t*>(args.d_y) + index, count);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const Share share = ShareOf<kForm>(x.v[j]);
    d.v[j] *= share.p + x.v[j] * share.p_slope;
    x.v[j] *= share.p;
  }
  gpu::StoreEight<kIsAligned>(static_cast<uint16_t*>(args.d_x) + index, d,
                              count);
  if (args.y != nullptr) {
    gpu::StoreEight<kIsAligned>(static_cast<uint16_t*>(args.y) + index, x,
                                count);
  }
}

absl::Status Check(const char* kernel, int64_t num_elements) {
  constexpr int64_t kLimit = int64_t{1} << 40;
  if (num_elements >= 0 && num_elements < kLimit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kernel, " got ", num_elements,
                   " elements; needs zero or more, less than 2^40"));
}

bool IsAligned(std::initializer_list<const void*> buffers) {
  for (const void* buffer : buffers) {
    if (reinterpret_cast<uintptr_t>(buffer) % 16 != 0) return false;
  }
  return true;
}

unsigned NumBlocks(int64_t num_elements) {
  return static_cast<unsigned>((num_elements + kPerBlock - 1) / kPerBlock);
}

}  // namespace

absl::Status LaunchGeluForwardBf16(const GeluForwardBf16Args& args,
                                   cudaStream_t stream) {
  if (absl::Status status = Check("GELU forward", args.num_elements);
      !status.ok()) {
    return status;
  }
  if (args.num_elements == 0) return absl::OkStatus();
  auto run = [&](auto kernel) {
    kernel<<<NumBlocks(args.num_elements), kNumThreads, 0, stream>>>(args);
  };
  const bool is_aligned = IsAligned({args.y, args.x});
  if (args.form == GeluForm::kTanh) {
    run(is_aligned ? GeluForwardKernel<GeluForm::kTanh, true>
                   : GeluForwardKernel<GeluForm::kTanh, false>);
  } else {
    run(is_aligned ? GeluForwardKernel<GeluForm::kErf, true>
                   : GeluForwardKernel<GeluForm::kErf, false>);
  }
  return CudaStatus(cudaGetLastError(), "launch GELU forward");
}

absl::Status LaunchGeluBackwardBf16(const GeluBackwardBf16Args& args,
                                    cudaStream_t stream) {
  if (absl::Status status = Check("GELU backward", args.num_elements);
      !status.ok()) {
    return status;
  }
  if (args.num_elements == 0) return absl::OkStatus();
  auto run = [&](auto kernel) {
    kernel<<<NumBlocks(args.num_elements), kNumThreads, 0, stream>>>(args);
  };
  const bool is_aligned = IsAligned({args.d_x, args.y, args.x, args.d_y});
  if (args.form == GeluForm::kTanh) {
    run(is_aligned ? GeluBackwardKernel<GeluForm::kTanh, true>
                   : GeluBackwardKernel<GeluForm::kTanh, false>);
  } else {
    run(is_aligned ? GeluBackwardKernel<GeluForm::kErf, true>
                   : GeluBackwardKernel<GeluForm::kErf, false>);
  }
  return CudaStatus(cudaGetLastError(), "launch GELU backward");
}

}  // namespace millrace
