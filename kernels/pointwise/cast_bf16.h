// Casts on a GPU: fp32 to bf16 and back, and bf16 to 8-bit floats with their
// transpose and the largest magnitude in one pass (cast.h says what rounding
// means).

#ifndef MILLRACE_KERNELS_POINTWISE_CAST_BF16_H_
#define MILLRACE_KERNELS_POINTWISE_CAST_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"
#include "kernels/pointwise/cast.h"

namespace millrace {

// Flat buffers at any address, apart from each other; where both are multiples
// of 16 bytes, they are read 16 bytes at a time.
struct CastToBf16Args {
  void* y;               // [num_elements] bf16
  const float* x;        // [num_elements]
  int64_t num_elements;  // Zero is allowed and does nothing.
  // To nearest even, or stochastically, as EncodeBf16Stochastic() with index
  // first_index + i.
  bool stochastic;
  uint64_t seed;
  uint64_t stream;
  int64_t first_index;  // A multiple of eight.
};

struct CastToFloatArgs {
  float* y;       // [num_elements]
  const void* x;  // [num_elements] bf16
  int64_t num_elements;
};

// y = x * scale, rounded to the format. A training step that chooses its scale
// by the amax of the steps before it ("delayed scaling") reads x once.
struct QuantizeFloat8Bf16Args {
  void* y;             // [rows, columns] 8-bit; may be null.
  void* y_transposed;  // [columns, rows] 8-bit; may be null.
  // Not null: becomes the larger of what it was and the largest |x|; NaN counts
  // as larger than all. The caller sets it to zero first.
  float* amax;
  const void* x;  // [rows, columns] bf16, rows x_row_stride elements apart.
  int64_t x_row_stride;
  int64_t rows;  // Zero is allowed and does nothing.
  int64_t columns;
  const float* scale;  // On the device; null: one.
  Float8Format format;
};

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape.
// Tensors of 8-bit floats are dense; any shape will do, and where rows and
// columns are multiples of eight and addresses of sixteen bytes, all accesses
// are wide.
absl::Status LaunchCastToBf16(const CastToBf16Args& args, cudaStream_t stream);
absl::Status LaunchCastToFloat(const CastToFloatArgs& args,
                               cudaStream_t stream);
absl::Status LaunchQuantizeFloat8Bf16(const QuantizeFloat8Bf16Args& args,
                                      cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_CAST_BF16_H_
