#include "kernels/pointwise/gelu_plain.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

using plain::FromFloat;
using plain::kNumThreads;
using plain::ToFloat;

// P(x) = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), which no cancellation spoils.
constexpr float kTwiceRootOfTwoOverPi = 1.59576912160573071f;
constexpr float kCubic = 0.044715f;

__device__ __forceinline__ float ShareBelow(float x, GeluForm form) {
  if (form == GeluForm::kErf) return 0.5f * erfcf(-x * 0.70710678118654752f);
  return 1.0f /
         (1.0f + expf(-kTwiceRootOfTwoOverPi * x * (1.0f + kCubic * x * x)));
}

// A thread an element. Limited by memory bandwidth.
template <typename T>
__global__ void __launch_bounds__(kNumThreads)
    PlainGeluForwardKernel(const __grid_constant__ PlainGeluForwardArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kNumThreads + threadIdx.x;
  if (i >= args.num_elements) return;
  const float x = ToFloat(static_cast<const T*>(args.x)[i]);
  static_cast<T*>(args.y)[i] = FromFloat<T>(x * ShareBelow(x, args.form));
}

// Likewise.
template <typename T>
__global__ void __launch_bounds__(kNumThreads) PlainGeluBackwardKernel(
    const __grid_constant__ PlainGeluBackwardArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kNumThreads + threadIdx.x;
  if (i >= args.num_elements) return;
  const float x = ToFloat(static_cast<const T*>(args.x)[i]);
  const float p = ShareBelow(x, args.form);
  // Far from zero x^2 may overflow, where P's own slope is nothing.
  const float tail = p * (1.0f - p);
  constexpr float kDensityAtZero = 0.39894228040143268f;  // 1 / sqrt(2 pi).
  const float slope =
      args.form == GeluForm::kErf ? kDensityAtZero * expf(-0.5f * x * x)
      : tail == 0.0f
          ? 0.0f
          : tail * kTwiceRootOfTwoOverPi * (1.0f + 3 * kCubic * x * x);
  static_cast<T*>(args.d_x)[i] = FromFloat<T>(
      ToFloat(static_cast<const T*>(args.d_y)[i]) * (p + x * slope));
}

absl::Status CheckGeluElements(int64_t num_elements) {
  if (num_elements >= 0 && num_elements < (int64_t{1} << 39)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("plain GELU got ", num_elements,
                   " elements; needs zero or more, less than 2^39"));
}

unsigned NumGeluBlocks(int64_t num_elements) {
  return static_cast<unsigned>((num_elements + kNumThreads - 1) / kNumThreads);
}

}  // namespace

absl::Status LaunchPlainGeluForward(const PlainGeluForwardArgs& args,
                                    ElementType type, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckGeluElements(args.num_elements));
  if (args.num_elements == 0) return absl::OkStatus();
  plain::WithElements(type, [&]<typename T>() {
    PlainGeluForwardKernel<T>
        <<<NumGeluBlocks(args.num_elements), kNumThreads, 0, stream>>>(args);
  });
  return CudaStatus(cudaGetLastError(), "launch plain GELU");
}

absl::Status LaunchPlainGeluBackward(const PlainGeluBackwardArgs& args,
                                     ElementType type, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckGeluElements(args.num_elements));
  if (args.num_elements == 0) return absl::OkStatus();
  plain::WithElements(type, [&]<typename T>() {
    PlainGeluBackwardKernel<T>
        <<<NumGeluBlocks(args.num_elements), kNumThreads, 0, stream>>>(args);
  });
  return CudaStatus(cudaGetLastError(), "launch plain GELU backward");
}

}  // namespace millrace
