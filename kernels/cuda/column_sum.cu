#include "kernels/cuda/column_sum.h"

#include <cuda_runtime_api.h>

#include "base/status_macros.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

constexpr int kColumns = 32;  // In a block, in fours.
constexpr int kRowThreads = 32;
constexpr int kNumThreads = kColumns / 4 * kRowThreads;

// One block for 32 columns, eight threads for every 32nd row. Limited by
// latency: the rows are few and still in the second-level cache. Blocks are
// small, so that they can wait beside the kernel that makes the rows.
__global__ void __launch_bounds__(kNumThreads)
    ColumnSumKernel(const ColumnSumArgs args) {
  __shared__ float totals[kRowThreads][kColumns + 1];
  const ColumnSum& sum = args.sums[blockIdx.y];
  const int four = threadIdx.x % (kColumns / 4) * 4;
  const int row_thread = threadIdx.x / (kColumns / 4);
  const int64_t column = int64_t{blockIdx.x} * kColumns + four;
  gpu::WaitForPreviousKernel();
  float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (column < args.num_columns) {
#pragma unroll 8
    for (int64_t row = row_thread; row < sum.num_rows; row += kRowThreads) {
      const float4 x = *reinterpret_cast<const float4*>(
          sum.rows + row * args.num_columns + column);
      total.x += x.x;
      total.y += x.y;
      total.z += x.z;
      total.w += x.w;
    }
  }
  totals[row_thread][four] = total.x;
  totals[row_thread][four + 1] = total.y;
  totals[row_thread][four + 2] = total.z;
  totals[row_thread][four + 3] = total.w;
  __syncthreads();
  const int own = threadIdx.x;  // One warp finishes, a column a thread.
  const int64_t own_column = int64_t{blockIdx.x} * kColumns + own;
  if (own < kColumns && own_column < args.num_columns) {
    float result = args.accumulate ? sum.out[own_column] : 0.0f;
#pragma unroll
    for (int i = 0; i < kRowThreads; ++i) result += totals[i][own];
    sum.out[own_column] = result;
  }
}

}  // namespace

absl::Status LaunchColumnSum(const ColumnSumArgs& args, cudaStream_t stream) {
  if (args.num_columns == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  const dim3 grid(
      static_cast<unsigned>((args.num_columns + kColumns - 1) / kColumns),
      static_cast<unsigned>(args.num_sums));
  return gpu::LaunchDependent(limits, ColumnSumKernel, grid, dim3(kNumThreads),
                              stream, args);
}

}  // namespace millrace
