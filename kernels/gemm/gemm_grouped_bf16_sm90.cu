#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/gemm/gemm_bf16_sm90_epilogue.cuh"
#include "kernels/gemm/gemm_bf16_sm90_launch.cuh"
#include "kernels/gemm/gemm_grouped_bf16.h"

namespace millrace {
namespace {

absl::Status CheckShape(const GroupedGemmBf16Shape& shape) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const std::string name =
      absl::StrCat("grouped bf16 GEMM of ", shape.num_groups, " groups, ",
                   shape.num_rows, " rows, n ", shape.n, ", k ", shape.k);
  if (shape.num_rows < 0 || shape.n < 1 || shape.k < 1 ||
      shape.num_groups < 1 || shape.num_rows > kMost ||
      shape.num_groups * shape.n > kMost ||
      shape.num_groups * shape.k > kMost) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": sizes are positive, and all b's rows at most ", kMost));
  }
  if (shape.n % 8 != 0 || shape.k % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": n and k are multiples of 8"));
  }
  // Else the last block along k would read the next group's rows of b.
  if (!shape.trans_b && shape.k % 64 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": k is a multiple of 64 where b is stored [k, n]"));
  }
  return absl::OkStatus();
}

template <bool kTransposeB>
absl::Status LaunchLayout(const GroupedGemmBf16Args& args,
                          int num_multiprocessors, cudaStream_t stream) {
  using C = gemm_sm90::Config<128, 256, 4, gemm_sm90::Pairs::kStacked,
                              gemm_sm90::Sharing::kHalves, false, kTransposeB>;
  const GroupedGemmBf16Shape& shape = args.shape;
  constexpr int kRaster = 8;
  const int64_t b_rows = shape.trans_b ? shape.n : shape.k;
  const int64_t b_columns = shape.trans_b ? shape.k : shape.n;
  ASSIGN_OR_RETURN(
      gemm_sm90::Params params,
      gemm_sm90::MakeParams<C>({.c = args.c,
                                .a = {.data = args.a,
                                      .rows = shape.num_rows,
                                      .columns = shape.k,
                                      .row_stride = shape.k},
                                .b = {.data = args.b,
                                      .rows = shape.num_groups * b_rows,
                                      .columns = b_columns,
                                      .row_stride = b_columns},
                                .c_stride = shape.n,
                                .num_rows = shape.num_rows,
                                .num_columns = shape.n,
                                .k = shape.k,
                                .scale = args.scale,
                                .store_boxes = false},
                               kRaster));
  params.group_offsets = args.group_offsets;
  params.num_groups = static_cast<int>(shape.num_groups);
  params.b_rows_per_group = static_cast<int>(b_rows);
  return gemm_sm90::Launch<C, gemm_sm90::GroupedTiles<C>,
                           gemm_sm90::StoreRowsBf16>(
      params, num_multiprocessors / C::kCluster, stream);
}

}  // namespace

absl::Status LaunchGroupedGemmBf16(const GroupedGemmBf16Args& args,
                                   cudaStream_t stream) {
  RETURN_IF_ERROR(CheckShape(args.shape));
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  if (!limits.IsHopper()) {
    return absl::UnavailableError(absl::StrCat(
        "grouped bf16 GEMM runs on Hopper (compute capability 9.0); the device "
        "has ",
        limits.compute_capability / 10, ".", limits.compute_capability % 10));
  }
  if (args.shape.num_rows == 0) return absl::OkStatus();
  return args.shape.trans_b
             ? LaunchLayout<false>(args, limits.num_multiprocessors, stream)
             : LaunchLayout<true>(args, limits.num_multiprocessors, stream);
}

}  // namespace millrace
