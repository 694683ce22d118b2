#include "kernels/vocabulary/position_plain.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

using plain::kNumThreads;
using plain::ToFloat;

// A thread an element of x. Limited by memory bandwidth.
template <typename T>
__global__ void __launch_bounds__(kNumThreads)
    AddPositionsKernel(const __grid_constant__ PlainAddPositionsArgs args) {
  const PositionShape& s = args.shape;
  const int64_t h = plain::ColumnOfThread();
  const int64_t row = int64_t{blockIdx.x} % s.sequence_length - s.first_row;
  if (h >= s.hidden || row < 0 || row >= s.num_rows) return;
  T* x = static_cast<T*>(args.x) + int64_t{blockIdx.x} * s.hidden + h;
  const T weight = static_cast<const T*>(args.weight)[row * s.hidden + h];
  *x = plain::FromFloat<T>(ToFloat(*x) + ToFloat(weight));
}

// A thread an element of d_weight, which reads it of every sequence. Limited by
// memory bandwidth.
template <typename T>
__global__ void __launch_bounds__(kNumThreads) PositionGradientKernel(
    const __grid_constant__ PlainPositionGradientArgs args) {
  const PositionShape& s = args.shape;
  const int64_t h = plain::ColumnOfThread();
  if (h >= s.hidden) return;
  float* d_weight = args.d_weight + int64_t{blockIdx.x} * s.hidden + h;
  float sum = args.accumulate ? *d_weight : 0.0f;
  const int64_t position = s.first_row + blockIdx.x;
  if (position < s.sequence_length) {
    for (int64_t t = position; t < s.num_tokens; t += s.sequence_length) {
      sum += ToFloat(static_cast<const T*>(args.d_x)[t * s.hidden + h]);
    }
  }
  *d_weight = sum;
}

absl::Status CheckPlainPositions(const PositionShape& s) {
  if (s.sequence_length < 1 || s.first_row < 0 || s.num_rows < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("plain positions got sequences of ", s.sequence_length,
                     " and rows from ", s.first_row, ", ", s.num_rows,
                     " of them; needs one or more, zero or more, one or more"));
  }
  RETURN_IF_ERROR(plain::CheckRows("plain positions", s.num_rows, s.hidden));
  return plain::CheckRows("plain positions", s.num_tokens, s.hidden);
}

}  // namespace

absl::Status LaunchPlainAddPositions(const PlainAddPositionsArgs& args,
                                     ElementType type, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckPlainPositions(args.shape));
  if (args.shape.num_tokens == 0) return absl::OkStatus();
  plain::WithElements(type, [&]<typename T>() {
    AddPositionsKernel<T>
        <<<plain::RowsGrid(args.shape.num_tokens, args.shape.hidden),
           kNumThreads, 0, stream>>>(args);
  });
  return CudaStatus(cudaGetLastError(), "launch plain positions");
}

absl::Status LaunchPlainPositionGradient(const PlainPositionGradientArgs& args,
                                         ElementType type,
                                         cudaStream_t stream) {
  RETURN_IF_ERROR(CheckPlainPositions(args.shape));
  plain::WithElements(type, [&]<typename T>() {
    PositionGradientKernel<T>
        <<<plain::RowsGrid(args.shape.num_rows, args.shape.hidden), kNumThreads,
           0, stream>>>(args);
  });
  return CudaStatus(cudaGetLastError(), "launch plain position gradient");
}

}  // namespace millrace
