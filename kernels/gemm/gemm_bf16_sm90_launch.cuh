// How a GemmKernel of gemm_bf16_sm90.cuh is launched on matrices.

#ifndef MILLRACE_KERNELS_GEMM_GEMM_BF16_SM90_LAUNCH_CUH_
#define MILLRACE_KERNELS_GEMM_GEMM_BF16_SM90_LAUNCH_CUH_

#include <algorithm>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/gemm/gemm_bf16_sm90.cuh"

namespace millrace::gemm_sm90 {

inline int CeilDivide(int64_t x, int64_t y) {
  return static_cast<int>((x + y - 1) / y);
}

// Matrices as stored, c [num_rows, num_columns], and what is summed over.
struct Operands {
  void* c;
  MatrixTensor a, b;
  int64_t c_stride;
  int64_t num_rows, num_columns, k;
  float scale;
  bool c_is_fp32 = false;
  bool store_boxes = true;  // By the copy engine, as PieceWriter does.
};

template <typename C>
absl::StatusOr<Params> MakeParams(const Operands& operands, int raster) {
  Params p = {};
  ASSIGN_OR_RETURN(
      p.a, EncodeMatrixTensorMap(
               operands.a,
               (C::kTransposeA ? C::kTileK : C::kTileM) / C::kClusterColumns));
  ASSIGN_OR_RETURN(
      p.b, EncodeMatrixTensorMap(
               operands.b,
               (C::kTransposeB ? C::kTileK : C::kTileN) / C::kClusterRows));
  if (operands.store_boxes) {
    ASSIGN_OR_RETURN(p.c,
                     EncodeMatrixTensorMap({.data = operands.c,
                                            .rows = operands.num_rows,
                                            .columns = operands.num_columns,
                                            .row_stride = operands.c_stride,
                                            .is_fp32 = operands.c_is_fp32},
                                           64));
  }
  p.c_data = operands.c;
  p.c_stride = operands.c_stride;
  p.num_rows = static_cast<int>(operands.num_rows);
  p.num_columns = static_cast<int>(operands.num_columns);
  p.num_tile_rows = CeilDivide(operands.num_rows, C::kTileM * C::kClusterRows);
  p.num_tile_columns =
      CeilDivide(operands.num_columns, C::kTileN * C::kClusterColumns);
  p.num_k_blocks = CeilDivide(operands.k, C::kTileK);
  p.raster = raster;
  p.scale = operands.scale;
  return p;
}

// Clusters that finish `num_tiles` as soon as all would: blocks with nothing to
// do in the last round draw power that the others could use.
inline int NumClusters(int num_tiles, int most) {
  most = std::clamp(most, 1, num_tiles);
  return CeilDivide(num_tiles, CeilDivide(num_tiles, most));
}

template <typename C, typename Tiles, typename Epilogue>
absl::Status Launch(const Params& params, int num_clusters,
                    cudaStream_t stream) {
  const auto kernel = GemmKernel<C, Tiles, Epilogue>;
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), C::kSharedBytes));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(num_clusters * C::kCluster);
  config.blockDim = dim3(C::kNumThreads);
  config.dynamicSmemBytes = C::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {C::kCluster, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, params),
                    "launch GemmBf16Sm90");
}

}  // namespace millrace::gemm_sm90

#endif  // MILLRACE_KERNELS_GEMM_GEMM_BF16_SM90_LAUNCH_CUH_
