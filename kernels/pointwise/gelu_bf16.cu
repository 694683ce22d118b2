#include "kernels/pointwise/gelu_bf16.h"

#include <cuda_runtime.h>

#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

using gpu::Float8;

constexpr int kNumThreads = 256;
constexpr int64_t kPerBlock = int64_t{8} * kNumThreads;

struct Share {
  float p;        // P(x) of gelu.h.
  float p_slope;  // P'(x).
};

// Neither form cancels where P is small: the tanh form goes through
// (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)), the erf form through erfc(z) =
// exp(-z^2) times a polynomial of 1 / (1 + 0.327 z) (Hastings, "Approximations
// for Digital Computers", 1955), good to 1.4e-7, and to 2e-3 of itself where it
// is 1e-7.
template <GeluForm kForm>
__device__ __forceinline__ Share ShareOf(float x) {
  const float square = x * x;
  if constexpr (kForm == GeluForm::kErf) {
    constexpr float kRootHalf = 0.70710678f;
    constexpr float kDensityAtZero = 0.39894228f;  // 1 / sqrt(2 pi).
    const float t = __fdividef(1.0f, 1.0f + 0.3275911f * kRootHalf * fabsf(x));
    const float polynomial =
        t * (0.254829592f +
             t * (-0.284496736f +
                  t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float bell = __expf(-0.5f * square);
    const float beyond = 0.5f * polynomial * bell;
    return {x < 0.0f ? beyond : 1.0f - beyond, kDensityAtZero * bell};
  } else {
    constexpr float kFactor = 1.59576912f;  // 2 sqrt(2 / pi).
    constexpr float kCubic = 0.044715f * kFactor;
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
  const int64_t left = max(int64_t{0}, num_elements - index);
  return {index, static_cast<int>(min(int64_t{8}, left))};
}

// A thread takes eight elements. Limited by memory bandwidth.
template <GeluForm kForm, bool kIsWide>
__global__ void __launch_bounds__(kNumThreads)
    GeluForwardKernel(const __grid_constant__ GeluForwardBf16Args args) {
  const auto [index, count] = FindPlace(args.num_elements);
  Float8 x = gpu::LoadEight<kIsWide, /*kStreams=*/false>(
      static_cast<const uint16_t*>(args.x) + index, count);
#pragma unroll
  for (float& value : x.v) value *= ShareOf<kForm>(value).p;
  gpu::StoreEight<kIsWide>(static_cast<uint16_t*>(args.y) + index, x, count);
}

// The same for the backward pass.
template <GeluForm kForm, bool kIsWide>
__global__ void __launch_bounds__(kNumThreads)
    GeluBackwardKernel(const __grid_constant__ GeluBackwardBf16Args args) {
  const auto [index, count] = FindPlace(args.num_elements);
  Float8 x = gpu::LoadEight<kIsWide, /*kStreams=*/false>(
      static_cast<const uint16_t*>(args.x) + index, count);
  Float8 d = gpu::LoadEight<kIsWide, /*kStreams=*/false>(
      static_cast<const uint16_t*>(args.d_y) + index, count);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const Share share = ShareOf<kForm>(x.v[j]);
    d.v[j] *= share.p + x.v[j] * share.p_slope;
    x.v[j] *= share.p;
  }
  gpu::StoreEight<kIsWide>(static_cast<uint16_t*>(args.d_x) + index, d, count);
  if (args.y != nullptr) {
    gpu::StoreEight<kIsWide>(static_cast<uint16_t*>(args.y) + index, x, count);
  }
}

absl::Status Check(const char* kernel, int64_t num_elements) {
  constexpr int64_t kLimit = int64_t{1} << 40;
  if (num_elements >= 0 && num_elements < kLimit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kernel, " got ", num_elements,
                   " elements; needs zero or more, less than 2^40"));
}

bool AreAligned(std::initializer_list<const void*> buffers) {
  for (const void* buffer : buffers) {
    if (reinterpret_cast<uintptr_t>(buffer) % 16 != 0) return false;
  }
  return true;
}

unsigned NumBlocks(int64_t num_elements) {
  return static_cast<unsigned>((num_elements + kPerBlock - 1) / kPerBlock);
}

// `elements` further, unless null.
template <typename T>
T* Shift(T* buffer, int64_t elements) {
  return buffer == nullptr
             ? nullptr
             : reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(buffer) +
                                    elements * sizeof(uint16_t));
}

template <GeluForm kForm>
void Run(const GeluForwardBf16Args& args, bool is_wide, cudaStream_t stream) {
  const auto kernel = is_wide ? GeluForwardKernel<kForm, true>
                              : GeluForwardKernel<kForm, false>;
  kernel<<<NumBlocks(args.num_elements), kNumThreads, 0, stream>>>(args);
}
template <GeluForm kForm>
void Run(const GeluBackwardBf16Args& args, bool is_wide, cudaStream_t stream) {
  const auto kernel = is_wide ? GeluBackwardKernel<kForm, true>
                              : GeluBackwardKernel<kForm, false>;
  kernel<<<NumBlocks(args.num_elements), kNumThreads, 0, stream>>>(args);
}

// Launches for the elements that lie in whole eights at multiples of 16 bytes,
// then for the others; `shift` moves the buffers of args.
template <typename Args, typename ShiftArgs>
void RunParts(const Args& args, bool is_aligned, const ShiftArgs& shift,
              cudaStream_t stream) {
  const int64_t num_wide = is_aligned ? args.num_elements / 8 * 8 : 0;
  for (const bool is_wide : {true, false}) {
    Args part = is_wide ? args : shift(args, num_wide);
    part.num_elements = is_wide ? num_wide : args.num_elements - num_wide;
    if (part.num_elements == 0) continue;
    if (args.form == GeluForm::kTanh) {
      Run<GeluForm::kTanh>(part, is_wide, stream);
    } else {
      Run<GeluForm::kErf>(part, is_wide, stream);
    }
  }
}

}  // namespace

absl::Status LaunchGeluForwardBf16(const GeluForwardBf16Args& args,
                                   cudaStream_t stream) {
  if (absl::Status status = Check("GELU forward", args.num_elements);
      !status.ok()) {
    return status;
  }
  RunParts(
      args, AreAligned({args.y, args.x}),
      [](GeluForwardBf16Args part, int64_t elements) {
        part.y = Shift(part.y, elements);
        part.x = Shift(part.x, elements);
        return part;
      },
      stream);
  return CudaStatus(cudaGetLastError(), "launch GELU forward");
}

absl::Status LaunchGeluBackwardBf16(const GeluBackwardBf16Args& args,
                                    cudaStream_t stream) {
  if (absl::Status status = Check("GELU backward", args.num_elements);
      !status.ok()) {
    return status;
  }
  RunParts(
      args, AreAligned({args.d_x, args.y, args.x, args.d_y}),
      [](GeluBackwardBf16Args part, int64_t elements) {
        part.d_x = Shift(part.d_x, elements);
        part.y = Shift(part.y, elements);
        part.x = Shift(part.x, elements);
        part.d_y = Shift(part.d_y, elements);
        return part;
      },
      stream);
  return CudaStatus(cudaGetLastError(), "launch GELU backward");
}

}  // namespace millrace
