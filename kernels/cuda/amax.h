// The largest magnitude of a bf16 tensor, which chooses the scale of its cast
// to 8-bit floats. Kernels that write the tensor find it with amax.cuh on the
// way; this one reads a tensor again.

#ifndef MILLRACE_KERNELS_CUDA_AMAX_H_
#define MILLRACE_KERNELS_CUDA_AMAX_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

struct AmaxBf16Args {
  // Becomes the larger of what it was and the largest |x|; NaN counts as larger
  // than all. The caller sets it to zero first.
  float* amax;
  const void* x;         // [rows, columns] bf16, at any address.
  int64_t x_row_stride;  // In elements.
  int64_t rows;          // Zero is allowed and does nothing.
  int64_t columns;
};

// Enqueues on `stream`, allocates nothing. InvalidArgument names a bad shape.
// Where columns and the stride are multiples of eight and x of sixteen bytes,
// accesses are wide.
absl::Status LaunchAmaxBf16(const AmaxBf16Args& args, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CUDA_AMAX_H_
