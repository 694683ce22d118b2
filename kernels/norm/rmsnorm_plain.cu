#include "kernels/norm/rmsnorm_plain.h"

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

__device__ __forceinline__ float SumOverBlock(float x) {
  __shared__ float scratch[kNumThreads / gpu::kWarpSize];
  return gpu::BlockSum<kNumThreads>(x, scratch);
}

// The second half of a forward pass: a block a token, of which y and x are the
// rows and sum_of_squares each thread's share.
template <typename T, typename W>
__device__ __forceinline__ void Normalise(T* y, float* rstd, const T* x,
                                          const W* weight, bool adds_one,
                                          float sum_of_squares, int64_t hidden,
                                          float epsilon) {
  const float offset = adds_one ? 1.0f : 0.0f;
  const float inverse =
      1.0f / sqrtf(SumOverBlock(sum_of_squares) / static_cast<float>(hidden) +
                   epsilon);
  for (int64_t h = threadIdx.x; h < hidden; h += kNumThreads) {
    y[h] =
        FromFloat<T>(ToFloat(x[h]) * inverse * (ToFloat(weight[h]) + offset));
  }
  if (threadIdx.x == 0) *rstd = inverse;
}

// A block a token. Limited by memory bandwidth: the second reading of a row
// finds it in the caches.
template <typename T, typename W>
__global__ void __launch_bounds__(kNumThreads)
    RmsNormForwardKernel(const __grid_constant__ PlainRmsNormForwardArgs args) {
  const int64_t token = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + token * args.hidden;
  float sum = 0.0f;
  for (int64_t h = threadIdx.x; h < args.hidden; h += kNumThreads) {
    const float value = ToFloat(x[h]);
    sum += value * value;
  }
  Normalise(static_cast<T*>(args.y) + token * args.hidden, args.rstd + token, x,
            static_cast<const W*>(args.weight), args.adds_one, sum, args.hidden,
            args.epsilon);
}

// Like the kernel above, for a sum. Each thread reads only those elements of
// residual that it wrote itself.
template <typename T, typename W>
__global__ void __launch_bounds__(kNumThreads) ResidualRmsNormForwardKernel(
    const __grid_constant__ PlainResidualRmsNormForwardArgs args) {
  const int64_t row = int64_t{blockIdx.x} * args.hidden;
  const T* x = static_cast<const T*>(args.x) + row;
  const T* delta = static_cast<const T*>(args.delta) + row;
  T* residual = static_cast<T*>(args.residual) + row;
  float sum = 0.0f;
  for (int64_t h = threadIdx.x; h < args.hidden; h += kNumThreads) {
    const T rounded = FromFloat<T>(ToFloat(x[h]) + ToFloat(delta[h]));
    residual[h] = rounded;
    sum += ToFloat(rounded) * ToFloat(rounded);
  }
  Normalise(static_cast<T*>(args.y) + row, args.rstd + blockIdx.x, residual,
            static_cast<const W*>(args.weight), args.adds_one, sum, args.hidden,
            args.epsilon);
}

// A block a token. Limited by memory bandwidth, as above.
template <typename T, typename W>
__global__ void __launch_bounds__(kNumThreads)
    InputGradientKernel(const __grid_constant__ PlainRmsNormBackwardArgs args) {
  const int64_t row = int64_t{blockIdx.x} * args.hidden;
  const T* x = static_cast<const T*>(args.x) + row;
  const T* d_y = static_cast<const T*>(args.d_y) + row;
  const W* weight = static_cast<const W*>(args.weight);
  const float rstd = args.rstd[blockIdx.x];
  const float offset = args.adds_one ? 1.0f : 0.0f;
  float sum = 0.0f;
  for (int64_t h = threadIdx.x; h < args.hidden; h += kNumThreads) {
    sum += ToFloat(d_y[h]) * (ToFloat(weight[h]) + offset) *
           (ToFloat(x[h]) * rstd);
  }
  const float mean = SumOverBlock(sum) / static_cast<float>(args.hidden);
  for (int64_t h = threadIdx.x; h < args.hidden; h += kNumThreads) {
    float d_x = rstd * (ToFloat(d_y[h]) * (ToFloat(weight[h]) + offset) -
                        ToFloat(x[h]) * rstd * mean);
    if (args.d_residual != nullptr) {
      d_x += ToFloat(static_cast<const T*>(args.d_residual)[row + h]);
    }
    static_cast<T*>(args.d_x)[row + h] = FromFloat<T>(d_x);
  }
}

// The gradient of weight: each part leaves a row in the workspace. Limited by
// memory bandwidth.
template <typename T>
__global__ void __launch_bounds__(kNumThreads) WeightGradientKernel(
    const __grid_constant__ PlainRmsNormBackwardArgs args) {
  __shared__ float sums[kBlockRows][kBlockColumns];
  const int lane = threadIdx.x % kBlockColumns;
  const int warp = threadIdx.x / kBlockColumns;
  const int64_t h = int64_t{blockIdx.x} * kBlockColumns + lane;
  const int64_t part = blockIdx.y;
  const int64_t begin = args.num_tokens * part / gridDim.y;
  const int64_t end = args.num_tokens * (part + 1) / gridDim.y;
  float sum = 0.0f;
  if (h < args.hidden) {
#pragma unroll 4
    for (int64_t t = begin + warp; t < end; t += kBlockRows) {
      const int64_t i = t * args.hidden + h;
      sum += ToFloat(static_cast<const T*>(args.d_y)[i]) *
             (ToFloat(static_cast<const T*>(args.x)[i]) * args.rstd[t]);
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || h >= args.hidden) return;
  for (int other = 1; other < kBlockRows; ++other) sum += sums[other][lane];
  args.workspace[part * args.hidden + h] = sum;
}

// A thread a column, parts in their order.
__global__ void __launch_bounds__(kNumThreads)
    AddPartsKernel(const __grid_constant__ PlainRmsNormBackwardArgs args,
                   int64_t num_parts) {
  const int64_t h = int64_t{blockIdx.x} * kNumThreads + threadIdx.x;
  if (h >= args.hidden) return;
  float sum = args.accumulate ? args.d_weight[h] : 0.0f;
  for (int64_t part = 0; part < num_parts; ++part) {
    sum += args.workspace[part * args.hidden + h];
  }
  args.d_weight[h] = sum;
}

}  // namespace

int64_t PlainRmsNormBackwardWorkspaceBytes(int64_t num_tokens, int64_t hidden) {
  return plain::NumParts(num_tokens) * hidden *
         static_cast<int64_t>(sizeof(float));
}

absl::Status LaunchPlainRmsNormForward(const PlainRmsNormForwardArgs& args,
                                       ElementType type, cudaStream_t stream) {
  RETURN_IF_ERROR(
      plain::CheckRows("plain RMSNorm", args.num_tokens, args.hidden));
  if (args.num_tokens == 0) return absl::OkStatus();
  plain::WithRowsAndWeights(
      type, args.fp32_weight, [&]<typename T, typename W>() {
        RmsNormForwardKernel<T, W><<<static_cast<unsigned>(args.num_tokens),
                                     kNumThreads, 0, stream>>>(args);
      });
  return CudaStatus(cudaGetLastError(), "launch plain RMSNorm");
}

absl::Status LaunchPlainResidualRmsNormForward(
    const PlainResidualRmsNormForwardArgs& args, ElementType type,
    cudaStream_t stream) {
  RETURN_IF_ERROR(
      plain::CheckRows("plain residual RMSNorm", args.num_tokens, args.hidden));
  if (args.num_tokens == 0) return absl::OkStatus();
  plain::WithRowsAndWeights(type, args.fp32_weight,
                            [&]<typename T, typename W>() {
                              ResidualRmsNormForwardKernel<T, W>
                                  <<<static_cast<unsigned>(args.num_tokens),
                                     kNumThreads, 0, stream>>>(args);
                            });
  return CudaStatus(cudaGetLastError(), "launch plain residual RMSNorm");
}

absl::Status LaunchPlainRmsNormBackward(const PlainRmsNormBackwardArgs& args,
                                        ElementType type, cudaStream_t stream) {
  RETURN_IF_ERROR(
      plain::CheckRows("plain RMSNorm backward", args.num_tokens, args.hidden));
  const int64_t num_parts = plain::NumParts(args.num_tokens);
  const dim3 part_blocks(
      static_cast<unsigned>((args.hidden + kBlockColumns - 1) / kBlockColumns),
      static_cast<unsigned>(num_parts));
  plain::WithRowsAndWeights(
      type, args.fp32_weight, [&]<typename T, typename W>() {
        if (args.num_tokens > 0) {
          InputGradientKernel<T, W><<<static_cast<unsigned>(args.num_tokens),
                                      kNumThreads, 0, stream>>>(args);
        }
        WeightGradientKernel<T><<<part_blocks, kNumThreads, 0, stream>>>(args);
      });
  AddPartsKernel<<<static_cast<unsigned>((args.hidden + kNumThreads - 1) /
                                         kNumThreads),
                   kNumThreads, 0, stream>>>(args, num_parts);
  return CudaStatus(cudaGetLastError(), "launch plain RMSNorm backward");
}

}  // namespace millrace
