#include "kernels/pointwise/swiglu_plain.h"

#include "base/status_macros.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

using plain::FromFloat;
using plain::ToFloat;

__device__ __forceinline__ float Sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// The gate's value and slope.
struct Gated {
  float value, slope;
};

__device__ __forceinline__ Gated GatedOf(GluGate kind, float x) {
  if (kind == GluGate::kSilu) {
    const float sigmoid = Sigmoid(x);
    return {x * sigmoid, sigmoid * (1.0f + x * (1.0f - sigmoid))};
  }
  // P = (1 + tanh u) / 2 = sigmoid(2 u) of gelu.h. Far from zero x^2 may
  // overflow, where P's own slope is nothing.
  constexpr float kFactor = 1.59576912160573071f;  // 2 sqrt(2 / pi).
  constexpr float kCubic = 0.044715f;
  const float p = Sigmoid(kFactor * x * (1.0f + kCubic * x * x));
  const float tail = p * (1.0f - p);
  const float slope =
      tail == 0.0f ? 0.0f : tail * kFactor * (1.0f + 3 * kCubic * x * x);
  return {x * p, p + x * slope};
}

// A thread an element of a token. Limited by memory bandwidth.
template <typename T>
__global__ void __launch_bounds__(plain::kNumThreads)
    SwigluForwardKernel(const __grid_constant__ PlainSwigluForwardArgs args) {
  const int64_t column = plain::ColumnOfThread();
  if (column >= args.ffn_hidden) return;
  const int64_t token = blockIdx.x;
  const T* row =
      static_cast<const T*>(args.gate_up) + token * 2 * args.ffn_hidden;
  const float gate = ToFloat(row[column]);
  const float up = ToFloat(row[args.ffn_hidden + column]);
  static_cast<T*>(args.activation)[token * args.ffn_hidden + column] =
      FromFloat<T>(GatedOf(args.gate, gate).value * up);
}

// The same for the backward pass.
template <typename T>
__global__ void __launch_bounds__(plain::kNumThreads)
    SwigluBackwardKernel(const __grid_constant__ PlainSwigluBackwardArgs args) {
  const int64_t column = plain::ColumnOfThread();
  if (column >= args.ffn_hidden) return;
  const int64_t token = blockIdx.x;
  const int64_t gate_idx = token * 2 * args.ffn_hidden + column;
  const int64_t up_idx = gate_idx + args.ffn_hidden;
  const T* gate_up = static_cast<const T*>(args.gate_up);
  T* d_gate_up = static_cast<T*>(args.d_gate_up);
  const float gate = ToFloat(gate_up[gate_idx]);
  const float up = ToFloat(gate_up[up_idx]);
  const float d = ToFloat(static_cast<const T*>(
      args.d_activation)[token * args.ffn_hidden + column]);
  const Gated gated = GatedOf(args.gate, gate);
  d_gate_up[gate_idx] = FromFloat<T>(d * up * gated.slope);
  d_gate_up[up_idx] = FromFloat<T>(d * gated.value);
}

}  // namespace

absl::Status LaunchPlainSwigluForward(const PlainSwigluForwardArgs& args,
                                      ElementType type, cudaStream_t stream) {
  RETURN_IF_ERROR(plain::CheckRows("plain SwiGLU forward", args.num_tokens,
                                   args.ffn_hidden));
  if (args.num_tokens == 0) return absl::OkStatus();
  plain::WithElements(type, [&]<typename T>() {
    SwigluForwardKernel<T><<<plain::RowsGrid(args.num_tokens, args.ffn_hidden),
                             plain::kNumThreads, 0, stream>>>(args);
  });
  return CudaStatus(cudaGetLastError(), "launch plain SwiGLU forward");
}

absl::Status LaunchPlainSwigluBackward(const PlainSwigluBackwardArgs& args,
                                       ElementType type, cudaStream_t stream) {
  RETURN_IF_ERROR(plain::CheckRows("plain SwiGLU backward", args.num_tokens,
                                   args.ffn_hidden));
  if (args.num_tokens == 0) return absl::OkStatus();
  plain::WithElements(type, [&]<typename T>() {
    SwigluBackwardKernel<T><<<plain::RowsGrid(args.num_tokens, args.ffn_hidden),
                              plain::kNumThreads, 0, stream>>>(args);
  });
  return CudaStatus(cudaGetLastError(), "launch plain SwiGLU backward");
}

}  // namespace millrace
