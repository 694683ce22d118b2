// How a GemmKernel of gemm_bf16_sm90.cuh is launched on matrices.

#ifndef MILLRACE_KERNELS_GEMM_BF16_SM90_LAUNCH_CUH_
#define MILLRACE_KERNELS_GEMM_BF16_SM90_LAUNCH_CUH_

#include <algorithm>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/gemm_bf16.h"
#include "kernels/gemm_bf16_sm90.cuh"

namespace millrace::gemm_sm90 {

inline int CeilDivide(int64_t x, int64_t y) {
  return static_cast<int>((x + y - 1) / y);
}

template <typename C>
absl::StatusOr<Params> MakeParams(const GemmBf16Shape& shape, int raster,
                                  const GemmBf16Args& args) {
  Params p;
  ASSIGN_OR_RETURN(
      p.a, EncodeMatrixTensorMap({.data = args.a,
                                  .rows = shape.trans_a ? shape.k : shape.m,
                                  .columns = shape.trans_a ? shape.m : shape.k,
                                  .row_stride = shape.a_stride},
                                 C::kTransposeA ? C::kTileK : C::kTileM));
  ASSIGN_OR_RETURN(p.b,
                   EncodeMatrixTensorMap(
                       {.data = args.b,
                        .rows = shape.trans_b ? shape.n : shape.k,
                        .columns = shape.trans_b ? shape.k : shape.n,
                        .row_stride = shape.b_stride},
                       (C::kTransposeB ? C::kTileK : C::kTileN) / C::kCluster));
  ASSIGN_OR_RETURN(p.c, EncodeMatrixTensorMap({.data = args.c,
                                               .rows = shape.m,
                                               .columns = shape.n,
                                               .row_stride = shape.c_stride,
                                               .is_fp32 = shape.fp32_output},
                                              64));
  p.num_tile_rows = CeilDivide(shape.m, C::kTileM * C::kCluster);
  p.num_tile_columns = CeilDivide(shape.n, C::kTileN);
  p.num_k_blocks = CeilDivide(shape.k, C::kTileK);
  p.raster = raster;
  p.scale = args.scale;
  return p;
}

template <typename C, typename Epilogue>
absl::Status Launch(const GemmBf16Shape& shape, int raster,
                    int num_multiprocessors, const GemmBf16Args& args,
                    cudaStream_t stream) {
  ASSIGN_OR_RETURN(const Params params, MakeParams<C>(shape, raster, args));
  const auto kernel = GemmKernel<C, Epilogue>;
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), C::kSharedBytes));
  const int num_tiles = params.num_tile_rows * params.num_tile_columns;
  const int num_clusters =
      std::clamp(num_multiprocessors / C::kCluster, 1, num_tiles);
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

#endif  // MILLRACE_KERNELS_GEMM_BF16_SM90_LAUNCH_CUH_
