#include "kernels/pointwise/bias_plain.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

using plain::kNumThreads;

// A thread an element. Limited by memory bandwidth.
template <typename T>
__global__ void __launch_bounds__(kNumThreads)
    AddBiasKernel(const __grid_constant__ PlainAddBiasArgs args) {
  const int64_t column = plain::ColumnOfThread();
  if (column >= args.num_cols) return;
  T* x = static_cast<T*>(args.x) + int64_t{blockIdx.x} * args.num_cols + column;
  *x = plain::FromFloat<T>(
      plain::ToFloat(*x) +
      plain::ToFloat(static_cast<const T*>(args.bias)[column]));
}

// Rows are cut into parts, whose number depends on how many rows there are
// alone. Each part leaves its sums in the workspace.
constexpr int64_t kMostBiasParts = 64;
constexpr int64_t kRowsOfPart = 32;
int64_t NumBiasParts(int64_t num_rows) {
  return std::clamp<int64_t>(num_rows / kRowsOfPart, 1, kMostBiasParts);
}

constexpr int kColumnsOfBlock = 64;
constexpr int kRowsOfBlock = kNumThreads / kColumnsOfBlock;

// A block takes 64 columns of a part, two warps every fourth row. Limited by
// memory bandwidth.
template <typename T>
__global__ void __launch_bounds__(kNumThreads)
    SumBiasPartKernel(const __grid_constant__ PlainBiasGradientArgs args) {
  __shared__ float sums[kRowsOfBlock][kColumnsOfBlock];
  const int lane = threadIdx.x % kColumnsOfBlock;
  const int first = threadIdx.x / kColumnsOfBlock;
  const int64_t column = int64_t{blockIdx.x} * kColumnsOfBlock + lane;
  const int64_t part = blockIdx.y;
  const int64_t begin = args.num_rows * part / gridDim.y;
  const int64_t end = args.num_rows * (part + 1) / gridDim.y;
  float sum = 0.0f;
  if (column < args.num_cols) {
    const T* d_y = static_cast<const T*>(args.d_y) + column;
#pragma unroll 8
    for (int64_t row = begin + first; row < end; row += kRowsOfBlock) {
      sum += plain::ToFloat(d_y[row * args.num_cols]);
    }
  }
  sums[first][lane] = sum;
  __syncthreads();
  if (first != 0 || column >= args.num_cols) return;
  for (int other = 1; other < kRowsOfBlock; ++other) sum += sums[other][lane];
  args.workspace[part * args.num_cols + column] = sum;
}

// A thread a column, parts in their order.
__global__ void __launch_bounds__(kNumThreads)
    AddBiasPartsKernel(const __grid_constant__ PlainBiasGradientArgs args,
                       int64_t num_parts) {
  const int64_t column = int64_t{blockIdx.x} * kNumThreads + threadIdx.x;
  if (column >= args.num_cols) return;
  float sum = args.accumulate ? args.d_bias[column] : 0.0f;
  for (int64_t part = 0; part < num_parts; ++part) {
    sum += args.workspace[part * args.num_cols + column];
  }
  args.d_bias[column] = sum;
}

unsigned BlocksOf(int64_t num_cols, int64_t of_block) {
  return static_cast<unsigned>((num_cols + of_block - 1) / of_block);
}

}  // namespace

int64_t PlainBiasGradientWorkspaceBytes(int64_t num_rows, int64_t num_cols) {
  return NumBiasParts(num_rows) * num_cols *
         static_cast<int64_t>(sizeof(float));
}

absl::Status LaunchPlainAddBias(const PlainAddBiasArgs& args, ElementType type,
                                cudaStream_t stream) {
  RETURN_IF_ERROR(
      plain::CheckRows("plain AddBias", args.num_rows, args.num_cols));
  if (args.num_rows == 0) return absl::OkStatus();
  plain::WithElements(type, [&]<typename T>() {
    AddBiasKernel<T><<<plain::RowsGrid(args.num_rows, args.num_cols),
                       kNumThreads, 0, stream>>>(args);
  });
  return CudaStatus(cudaGetLastError(), "launch plain AddBias");
}

absl::Status LaunchPlainBiasGradient(const PlainBiasGradientArgs& args,
                                     ElementType type, cudaStream_t stream) {
  RETURN_IF_ERROR(
      plain::CheckRows("plain BiasGradient", args.num_rows, args.num_cols));
  const int64_t num_parts = NumBiasParts(args.num_rows);
  const dim3 grid(BlocksOf(args.num_cols, kColumnsOfBlock),
                  static_cast<unsigned>(num_parts));
  plain::WithElements(type, [&]<typename T>() {
    SumBiasPartKernel<T><<<grid, kNumThreads, 0, stream>>>(args);
  });
  AddBiasPartsKernel<<<BlocksOf(args.num_cols, kNumThreads), kNumThreads, 0,
                       stream>>>(args, num_parts);
  return CudaStatus(cudaGetLastError(), "launch plain BiasGradient");
}

}  // namespace millrace
