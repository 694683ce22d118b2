// Initial weights on a GPU: the numbers of random_normal.h, drawn where they
// are needed.

#ifndef MILLRACE_KERNELS_POINTWISE_RANDOM_NORMAL_CUDA_H_
#define MILLRACE_KERNELS_POINTWISE_RANDOM_NORMAL_CUDA_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// A run of a box of a row-major matrix. Element i of the box is row
// row_begin + i / box_cols, column col_begin + i % box_cols of the matrix, and
// its number is that of index row * cols + column in the stream.
struct FillNormalBoxArgs {
  float* out;  // [end - begin], on the device.
  int64_t begin;
  int64_t end;  // Not below `begin`; an empty run does nothing.
  int64_t row_begin;
  int64_t col_begin;
  int64_t box_cols;
  int64_t cols;  // In the whole matrix; at least col_begin + box_cols.
  double std;    // As FillNormalArgs.
  uint64_t seed;
  uint64_t stream;
};

// Enqueue on `stream`, allocate nothing. InvalidArgument names what is out of
// range. The bits before rounding to fp32 are those of FillNormal() up to the
// last places of the device's logarithm, sine and cosine in double, so that
// about one number in 10^8 is the next fp32 one instead.
absl::Status LaunchFillNormalBox(const FillNormalBoxArgs& args,
                                 cudaStream_t stream);
// out[i] = value.
absl::Status LaunchFill(float* out, int64_t count, float value,
                        cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_RANDOM_NORMAL_CUDA_H_
