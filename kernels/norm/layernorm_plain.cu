#include "kernels/norm/layernorm_plain.h"

#include "base/status_macros.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/norm/norm_plain.cuh"

namespace millrace {
namespace {

using plain::FromFloat;
using plain::kBlockColumns;
using plain::kBlockRows;
using plain::kNumThreads;
using plain::ToFloat;

// The barrier in front lets sums follow each other.
__device__ __forceinline__ float SumOfRow(float x) {
  __shared__ float scratch[kNumThreads / gpu::kWarpSize];
  __syncthreads();
  return gpu::BlockSum<kNumThreads>(x, scratch);
}

// A block a token. Limited by memory bandwidth: later readings of a row find it
// in the caches. Each thread reads only those elements of residual that it
// wrote itself.
template <typename T, typename W>
__global__ void __launch_bounds__(kNumThreads) PlainLayerNormForwardKernel(
    const __grid_constant__ PlainLayerNormForwardArgs args) {
  const int64_t row = int64_t{blockIdx.x} * args.hidden;
  const T* x = static_cast<const T*>(args.x) + row;
  const auto hidden = static_cast<float>(args.hidden);
  float sum = 0.0f;
  if (args.residual == nullptr) {
    for (int64_t h = threadIdx.x; h < args.hidden; h += kNumThreads) {
      sum += ToFloat(x[h]);
    }
  } else {
    const T* delta = static_cast<const T*>(args.delta) + row;
    T* residual = static_cast<T*>(args.residual) + row;
    for (int64_t h = threadIdx.x; h < args.hidden; h += kNumThreads) {
      residual[h] = FromFloat<T>(ToFloat(x[h]) + ToFloat(delta[h]));
      sum += ToFloat(residual[h]);
    }
    x = residual;
  }
  const float mean = SumOfRow(sum) / hidden;
  float squares = 0.0f;
  for (int64_t h = threadIdx.x; h < args.hidden; h += kNumThreads) {
    const float centred = ToFloat(x[h]) - mean;
    squares += centred * centred;
  }
  const float rstd = 1.0f / sqrtf(SumOfRow(squares) / hidden + args.epsilon);
  const W* weight = static_cast<const W*>(args.weight);
  const W* bias = static_cast<const W*>(args.bias);
  T* y = static_cast<T*>(args.y) + row;
  for (int64_t h = threadIdx.x; h < args.hidden; h += kNumThreads) {
    y[h] = FromFloat<T>((ToFloat(x[h]) - mean) * rstd * ToFloat(weight[h]) +
                        ToFloat(bias[h]));
  }
  if (threadIdx.x == 0) {
    args.mean[blockIdx.x] = mean;
    args.rstd[blockIdx.x] = rstd;
  }
}

// A block a token. Limited by memory bandwidth, as above.
template <typename T, typename W>
__global__ void __launch_bounds__(kNumThreads)
    PlainLayerNormInputGradientKernel(
        const __grid_constant__ PlainLayerNormBackwardArgs args) {
  const int64_t row = int64_t{blockIdx.x} * args.hidden;
  const T* x = static_cast<const T*>(args.x) + row;
  const T* d_y = static_cast<const T*>(args.d_y) + row;
  const W* weight = static_cast<const W*>(args.weight);
  const float mean = args.mean[blockIdx.x];
  const float rstd = args.rstd[blockIdx.x];
  const auto hidden = static_cast<float>(args.hidden);
  float sum = 0.0f;
  float product = 0.0f;
  for (int64_t h = threadIdx.x; h < args.hidden; h += kNumThreads) {
    const float g = ToFloat(d_y[h]) * ToFloat(weight[h]);
    sum += g;
    product += g * ((ToFloat(x[h]) - mean) * rstd);
  }
  const float of_g = SumOfRow(sum) / hidden;
  const float of_product = SumOfRow(product) / hidden;
  for (int64_t h = threadIdx.x; h < args.hidden; h += kNumThreads) {
    float d_x = rstd * (ToFloat(d_y[h]) * ToFloat(weight[h]) - of_g -
                        (ToFloat(x[h]) - mean) * rstd * of_product);
    if (args.d_residual != nullptr) {
      d_x += ToFloat(static_cast<const T*>(args.d_residual)[row + h]);
    }
    static_cast<T*>(args.d_x)[row + h] = FromFloat<T>(d_x);
  }
}

// The gradients of weight and bias: each part leaves a row for either in the
// workspace. Limited by memory bandwidth.
template <typename T>
__global__ void __launch_bounds__(kNumThreads)
    PlainLayerNormWeightGradientKernel(
        const __grid_constant__ PlainLayerNormBackwardArgs args) {
  __shared__ float sums[2][kBlockRows][kBlockColumns];
  const int lane = threadIdx.x % kBlockColumns;
  const int warp = threadIdx.x / kBlockColumns;
  const int64_t h = int64_t{blockIdx.x} * kBlockColumns + lane;
  const int64_t part = blockIdx.y;
  const int64_t begin = args.num_tokens * part / gridDim.y;
  const int64_t end = args.num_tokens * (part + 1) / gridDim.y;
  float of_weight = 0.0f;
  float of_bias = 0.0f;
  if (h < args.hidden) {
#pragma unroll 4
    for (int64_t t = begin + warp; t < end; t += kBlockRows) {
      const int64_t i = t * args.hidden + h;
      const float d_y = ToFloat(static_cast<const T*>(args.d_y)[i]);
      const float x = ToFloat(static_cast<const T*>(args.x)[i]);
      of_weight += d_y * ((x - args.mean[t]) * args.rstd[t]);
      of_bias += d_y;
    }
  }
  sums[0][warp][lane] = of_weight;
  sums[1][warp][lane] = of_bias;
  __syncthreads();
  if (warp != 0 || h >= args.hidden) return;
  for (int other = 1; other < kBlockRows; ++other) {
    of_weight += sums[0][other][lane];
    of_bias += sums[1][other][lane];
  }
  args.workspace[2 * part * args.hidden + h] = of_weight;
  args.workspace[(2 * part + 1) * args.hidden + h] = of_bias;
}

// A thread a column, parts in their order.
__global__ void __launch_bounds__(kNumThreads) AddLayerNormPartsKernel(
    const __grid_constant__ PlainLayerNormBackwardArgs args,
    int64_t num_parts) {
  const int64_t h = int64_t{blockIdx.x} * kNumThreads + threadIdx.x;
  if (h >= args.hidden) return;
  float of_weight = args.accumulate ? args.d_weight[h] : 0.0f;
  float of_bias = args.accumulate ? args.d_bias[h] : 0.0f;
  for (int64_t part = 0; part < num_parts; ++part) {
    of_weight += args.workspace[2 * part * args.hidden + h];
    of_bias += args.workspace[(2 * part + 1) * args.hidden + h];
  }
  args.d_weight[h] = of_weight;
  args.d_bias[h] = of_bias;
}

}  // namespace

int64_t PlainLayerNormBackwardWorkspaceBytes(int64_t num_tokens,
                                             int64_t hidden) {
  return 2 * plain::NumParts(num_tokens) * hidden *
         static_cast<int64_t>(sizeof(float));
}

absl::Status LaunchPlainLayerNormForward(const PlainLayerNormForwardArgs& args,
                                         ElementType type,
                                         cudaStream_t stream) {
  RETURN_IF_ERROR(
      plain::CheckRows("plain LayerNorm", args.num_tokens, args.hidden));
  if (args.num_tokens == 0) return absl::OkStatus();
  plain::WithRowsAndWeights(type, args.fp32_weight,
                            [&]<typename T, typename W>() {
                              PlainLayerNormForwardKernel<T, W>
                                  <<<static_cast<unsigned>(args.num_tokens),
                                     kNumThreads, 0, stream>>>(args);
                            });
  return CudaStatus(cudaGetLastError(), "launch plain LayerNorm");
}

absl::Status LaunchPlainLayerNormBackward(
    const PlainLayerNormBackwardArgs& args, ElementType type,
    cudaStream_t stream) {
  RETURN_IF_ERROR(plain::CheckRows("plain LayerNorm backward", args.num_tokens,
                                   args.hidden));
  const int64_t num_parts = plain::NumParts(args.num_tokens);
  const dim3 part_blocks(
      static_cast<unsigned>((args.hidden + kBlockColumns - 1) / kBlockColumns),
      static_cast<unsigned>(num_parts));
  plain::WithRowsAndWeights(
      type, args.fp32_weight, [&]<typename T, typename W>() {
        if (args.num_tokens > 0) {
          PlainLayerNormInputGradientKernel<T, W>
              <<<static_cast<unsigned>(args.num_tokens), kNumThreads, 0,
                 stream>>>(args);
        }
        PlainLayerNormWeightGradientKernel<T>
            <<<part_blocks, kNumThreads, 0, stream>>>(args);
      });
  AddLayerNormPartsKernel<<<static_cast<unsigned>(
                                (args.hidden + kNumThreads - 1) / kNumThreads),
                            kNumThreads, 0, stream>>>(args, num_parts);
  return CudaStatus(cudaGetLastError(), "launch plain LayerNorm backward");
}

}  // namespace millrace
