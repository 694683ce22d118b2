// quantize_blocks.h on a GPU: bf16 to 8-bit copies with a scale for each block,
// in one pass over x.

#ifndef MILLRACE_KERNELS_POINTWISE_QUANTIZE_BLOCKS_BF16_H_
#define MILLRACE_KERNELS_POINTWISE_QUANTIZE_BLOCKS_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"
#include "kernels/pointwise/quantize_blocks.h"

namespace millrace {

// Dense tensors on the device, at multiples of 16 bytes.
struct QuantizeBlocksBf16Args {
  void* y;                  // [rows, columns] e4m3; may be null.
  float* units;             // [columns / 128, rows]; with y only.
  void* y_transposed;       // [columns, rows] e4m3; may be null.
  float* units_transposed;  // [rows / 128, columns]; with y_transposed only.
  const void* x;            // [rows, columns] bf16
  int64_t rows, columns;    // Multiples of kQuantizeBlock, at least one each.
};

struct QuantizeSquaresBf16Args {
  void* y;             // [rows, columns] e4m3; may be null.
  void* y_transposed;  // [columns, rows] e4m3; may be null.
  float* units;        // [rows / 128, columns / 128]
  const void* x;       // [rows, columns] bf16
  int64_t rows, columns;
};

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape or
// address. The bits are those of quantize_blocks.h.
absl::Status LaunchQuantizeBlocksBf16(const QuantizeBlocksBf16Args& args,
                                      cudaStream_t stream);
absl::Status LaunchQuantizeSquaresBf16(const QuantizeSquaresBf16Args& args,
                                       cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_QUANTIZE_BLOCKS_BF16_H_
