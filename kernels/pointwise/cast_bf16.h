// Casts on a GPU: fp32 to bf16 and back, and bf16 to 8-bit floats with their
// transpose and the largest magnitude in one pass (cast.h says what rounding
// and scales mean).

#ifndef MILLRACE_KERNELS_POINTWISE_CAST_BF16_H_
#define MILLRACE_KERNELS_POINTWISE_CAST_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/amax.h"
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
// by the amax of the steps before it ("delayed scaling") reads x once. One that
// chooses it by the amax of x itself ("current scaling") must know that amax
// before, from LaunchAmaxBf16() or from the kernel that wrote x.
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
  // On the device; not null: the scale is Float8Scale(*scale_of_amax, format).
  // `scale` is null then, and `amax` another address.
  const float* scale_of_amax = nullptr;
  // Not null: becomes Float8Unit(*scale_of_amax, format), one of the two scales
  // that a product of 8-bit tensors takes. With scale_of_amax only.
  float* unit = nullptr;
  Float8Format format;
};

// y = the transpose of x, byte by byte: a weight that was quantized and
// gathered by rows becomes what the gradient of its input multiplies by.
struct TransposeFloat8CudaArgs {
  void* y;        // [columns, rows] 8-bit; apart from x.
  const void* x;  // [rows, columns] 8-bit, rows x_row_stride elements apart.
  int64_t x_row_stride;
  int64_t rows;  // Zero is allowed and does nothing.
  int64_t columns;
};

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape or
// scales that exclude each other. Equal inputs give equal bits.
// Tensors of 8-bit floats are dense; any shape will do, and where rows and
// columns are multiples of eight and addresses of sixteen bytes, all accesses
// are wide.
absl::Status LaunchCastToBf16(const CastToBf16Args& args, cudaStream_t stream);
absl::Status LaunchCastToFloat(const CastToFloatArgs& args,
                               cudaStream_t stream);
absl::Status LaunchQuantizeFloat8Bf16(const QuantizeFloat8Bf16Args& args,
                                      cudaStream_t stream);
// Its accesses are wide where rows, columns, stride and addresses are multiples
// of sixteen.
absl::Status LaunchTransposeFloat8(const TransposeFloat8CudaArgs& args,
                                   cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_CAST_BF16_H_
