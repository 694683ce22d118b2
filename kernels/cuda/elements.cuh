// Elements of either type as floats, and the grids of plain kernels.

#ifndef MILLRACE_KERNELS_CUDA_ELEMENTS_CUH_
#define MILLRACE_KERNELS_CUDA_ELEMENTS_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/element_type.h"

namespace millrace::plain {

inline constexpr int kNumThreads = 256;
inline constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMaxColumns = int64_t{65535} * kNumThreads;

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
// Rounds to nearest even.
template <typename T>
__device__ __forceinline__ T FromFloat(float x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return x;
  } else {
    return __float2bfloat16_rn(x);
  }
}

// Calls body.operator()<T>() with the type that tensors hold.
template <typename Body>
void WithElements(ElementType type, const Body& body) {
  if (type == ElementType::kFloat32) {
    body.template operator()<float>();
  } else {
    body.template operator()<__nv_bfloat16>();
  }
}

// A thread for each element of [rows, columns]; blockIdx.x is the row.
inline dim3 RowsGrid(int64_t rows, int64_t columns) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>((columns + kNumThreads - 1) / kNumThreads));
}
__device__ __forceinline__ int64_t ColumnOfThread() {
  return int64_t{blockIdx.y} * kNumThreads + threadIdx.x;
}

inline absl::Status CheckRows(const char* kernel, int64_t rows,
                              int64_t columns) {
  if (rows >= 0 && rows <= kMaxRows && columns >= 1 && columns <= kMaxColumns) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      kernel, " got [", rows, ", ", columns, "]; needs rows in [0, ", kMaxRows,
      "] and columns in [1, ", kMaxColumns, "]"));
}

}  // namespace millrace::plain

#endif  // MILLRACE_KERNELS_CUDA_ELEMENTS_CUH_
