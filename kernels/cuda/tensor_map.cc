#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// The driver's entry, looked up once so that nothing links against libcuda:
// the program then starts on machines without a driver too.
decltype(&cuTensorMapEncodeTiled) Encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
      function = nullptr;
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encoder;
}

// The driver wants a current context, which the runtime gives a thread in its
// first call there: a thread of the caller's that makes none, like PyTorch's
// for gradients, has no context yet.
template <typename... Arguments>
CUresult Encode(const Arguments&... arguments) {
  const CUresult result = Encoder()(arguments...);
  int device = 0;
  if (result != CUDA_ERROR_INVALID_CONTEXT ||
      cudaGetDevice(&device) != cudaSuccess ||
      cudaSetDevice(device) != cudaSuccess) {
    return result;
  }
  return Encoder()(arguments...);
}

}  // namespace

absl::StatusOr<CUtensorMap> EncodeHeadsTensorMap(const HeadsTensor& tensor,
                                                 int32_t box_rows) {
  if (Encoder() == nullptr) {
    return absl::UnavailableError(
        "the CUDA driver does not know tensor maps (CUDA 12.0 or newer does)");
  }
  constexpr cuuint32_t kSwizzleColumns = 64;  // 128 bytes of bf16.
  constexpr cuuint64_t kElementBytes = 2;
  const cuuint64_t dims[4] = {static_cast<cuuint64_t>(tensor.columns),
                              static_cast<cuuint64_t>(tensor.rows),
                              static_cast<cuuint64_t>(tensor.middle),
                              static_cast<cuuint64_t>(tensor.outer)};
  const cuuint64_t strides[3] = {
      static_cast<cuuint64_t>(tensor.row_stride) * kElementBytes,
      static_cast<cuuint64_t>(tensor.middle_stride) * kElementBytes,
      static_cast<cuuint64_t>(tensor.outer_stride) * kElementBytes};
  const cuuint32_t box[4] = {kSwizzleColumns, static_cast<cuuint32_t>(box_rows),
                             1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      Encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, tensor.data, dims,
             strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor map of [", tensor.outer, ", ", tensor.middle, ", ", tensor.rows,
        ", ", tensor.columns, "] with strides ", tensor.outer_stride, ", ",
        tensor.middle_stride, ", ", tensor.row_stride, " refused (CUresult ",
        static_cast<int>(result),
        "): addresses and strides must be multiples of 16 bytes"));
  }
  return map;
}

absl::StatusOr<CUtensorMap> EncodeByteHeadsTensorMap(const HeadsTensor& tensor,
                                                     int32_t box_rows) {
  if (Encoder() == nullptr) {
    return absl::UnavailableError(
        "the CUDA driver does not know tensor maps (CUDA 12.0 or newer does)");
  }
  const cuuint64_t dims[4] = {static_cast<cuuint64_t>(tensor.columns),
                              static_cast<cuuint64_t>(tensor.rows),
                              static_cast<cuuint64_t>(tensor.middle),
                              static_cast<cuuint64_t>(tensor.outer)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(tensor.row_stride),
                                 static_cast<cuuint64_t>(tensor.middle_stride),
                                 static_cast<cuuint64_t>(tensor.outer_stride)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(tensor.columns),
                             static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  CUtensorMap map;
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  if (tensor.columns == 64 || tensor.columns == 128) {
    result = Encode(
        &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 4, tensor.data, dims, strides, box,
        element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
        tensor.columns == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                             : CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }
  if (result != CUDA_SUCCESS) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor map of bytes [", tensor.outer, ", ", tensor.middle, ", ",
        tensor.rows, ", ", tensor.columns, "] with strides ",
        tensor.outer_stride, ", ", tensor.middle_stride, ", ",
        tensor.row_stride, " refused (CUresult ", static_cast<int>(result),
        "): rows have 64 or 128 bytes, and addresses and strides must be "
        "multiples of 16 bytes"));
  }
  return map;
}

absl::StatusOr<CUtensorMap> EncodeMatrixTensorMap(const MatrixTensor& matrix,
                                                  int32_t box_rows) {
  if (Encoder() == nullptr) {
    return absl::UnavailableError(
        "the CUDA driver does not know tensor maps (CUDA 12.0 or newer does)");
  }
  const int element_bytes = matrix.is_fp32 ? 4 : 2;
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(matrix.columns),
                              static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[1] = {
      static_cast<cuuint64_t>(matrix.row_stride * element_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / element_bytes),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t element_strides[2] = {1, 1};
  CUtensorMap map;
  const CUresult result = Encode(
      &map,
      matrix.is_fp32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                     : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      2, const_cast<void*>(matrix.data), dims, strides, box, element_strides,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor map of [", matrix.rows, ", ", matrix.columns, "] with stride ",
        matrix.row_stride, " refused (CUresult ", static_cast<int>(result),
        "): addresses and strides must be multiples of 16 bytes"));
  }
  return map;
}

absl::StatusOr<CUtensorMap> EncodeRowsTensorMap(const float* data, int64_t rows,
                                                int32_t columns) {
  if (Encoder() == nullptr) {
    return absl::UnavailableError(
        "the CUDA driver does not know tensor maps (CUDA 12.0 or newer does)");
  }
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(columns),
                              static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns) *
                                 sizeof(float)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(columns), 1};
  const cuuint32_t element_strides[2] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      Encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, const_cast<float*>(data),
             dims, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor map of ", rows, " rows of ", columns,
        " numbers refused (CUresult ", static_cast<int>(result),
        "): the address is a multiple of 16 bytes, rows have a multiple of 4 "
        "numbers, 256 at most"));
  }
  return map;
}

}  // namespace millrace
