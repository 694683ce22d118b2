// Tensor maps: how the copy engine of Hopper finds boxes of a tensor.

#ifndef MILLRACE_KERNELS_CUDA_TENSOR_MAP_H_
#define MILLRACE_KERNELS_CUDA_TENSOR_MAP_H_

#include <cuda.h>

#include <cstdint>

#include "absl/status/statusor.h"

namespace millrace {

// A bf16 tensor [outer, middle, rows, columns], columns contiguous. Base
// address and strides are multiples of 16 bytes; strides count elements.
struct HeadsTensor {
  void* data;
  int64_t columns, rows, middle, outer;
  int64_t row_stride, middle_stride, outer_stride;
};

// Boxes of `box_rows` rows of 64 columns, which arrive with 128-byte swizzle.
// Returns InvalidArgument if the driver refuses the shape, Unavailable without
// a driver that knows tensor maps.
absl::StatusOr<CUtensorMap> EncodeHeadsTensorMap(const HeadsTensor& tensor,
                                                 int32_t box_rows);

// The same of 8-bit elements with 64 or 128 columns: a box is whole rows, and
// its swizzle is as wide as a row.
absl::StatusOr<CUtensorMap> EncodeByteHeadsTensorMap(const HeadsTensor& tensor,
                                                     int32_t box_rows);

// A matrix [rows, columns] of bf16 or fp32, columns contiguous. The base
// address and the row stride (elements) are multiples of 16 bytes.
struct MatrixTensor {
  const void* data;
  int64_t rows, columns, row_stride;
  bool is_fp32 = false;
};

// Boxes of `box_rows` rows (256 at most) of 128 bytes, with 128-byte swizzle.
// Errors as above.
absl::StatusOr<CUtensorMap> EncodeMatrixTensorMap(const MatrixTensor& matrix,
                                                  int32_t box_rows);

// Rows of `columns` fp32 numbers, one after the other: a box is one row and
// arrives as it is. `columns` is a multiple of 4, 256 at most. Errors as above.
absl::StatusOr<CUtensorMap> EncodeRowsTensorMap(const float* data, int64_t rows,
                                                int32_t columns);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CUDA_TENSOR_MAP_H_
