// Copies in e4m3 with a scale for each block, and their products. Operands in
// the order that planner/program/float8_block_rows.h gives them.

#include <cuda_runtime.h>

#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device.h"
#include "kernels/gemm/gemm_fp8_block.h"
#include "kernels/pointwise/bias_plain.h"
#include "kernels/pointwise/quantize_blocks_bf16.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/cuda/ops/ops.h"
#include "worker/train/product_bias.h"

namespace millrace {
namespace {

static_assert(kQuantizeBlock == kFloat8Block && kFp8Block == kFloat8Block);

absl::Status CheckStoresBf16Blocks(const CudaOpContext& context) {
  if (IsBf16(context)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "8-bit products on GPUs read copies of bf16 tensors, and the layout "
      "stores fp32");
}

absl::StatusOr<CudaOp> BindQuantizeBlocks(const CudaOpContext& context,
                                          const Instruction& in) {
  RETURN_IF_ERROR(CheckStoresBf16Blocks(context));
  const auto& attributes = std::get<QuantizeAttributes>(in.attributes);
  QuantizeBlocksBf16Args args = {.y = nullptr,
                                 .units = nullptr,
                                 .y_transposed = nullptr,
                                 .units_transposed = nullptr,
                                 .x = context.Input<void>(in, 0),
                                 .rows = attributes.rows,
                                 .columns = attributes.cols};
  size_t next = 0;
  if (attributes.keeps_rows) {
    args.y = context.Output<void>(in, next++);
    args.units = context.Output<float>(in, next++);
  }
  if (attributes.keeps_transposed) {
    args.y_transposed = context.Output<void>(in, next++);
    args.units_transposed = context.Output<float>(in, next);
  }
  return CudaOp([args](cudaStream_t stream) {
    return LaunchQuantizeBlocksBf16(args, stream);
  });
}

absl::StatusOr<CudaOp> BindQuantizeSquares(const CudaOpContext& context,
                                           const Instruction& in) {
  RETURN_IF_ERROR(CheckStoresBf16Blocks(context));
  const auto& attributes = std::get<QuantizeAttributes>(in.attributes);
  QuantizeSquaresBf16Args args = {.y = nullptr,
                                  .y_transposed = nullptr,
                                  .units = context.Output<float>(in, 0),
                                  .x = context.Input<void>(in, 0),
                                  .rows = attributes.rows,
                                  .columns = attributes.cols};
  size_t next = 1;
  if (attributes.keeps_rows) args.y = context.Output<void>(in, next++);
  if (attributes.keeps_transposed) {
    args.y_transposed = context.Output<void>(in, next);
  }
  return CudaOp([args](cudaStream_t stream) {
    return LaunchQuantizeSquaresBf16(args, stream);
  });
}

absl::Status CheckIsHopper() {
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  if (limits.IsHopper()) return absl::OkStatus();
  const bool has_float8 = limits.compute_capability >= 89;
  return absl::UnavailableError(absl::StrCat(
      "training.precision fp8_blockwise runs on Hopper (compute capability "
      "9.0), and the device has ",
      limits.compute_capability / 10, ".", limits.compute_capability % 10,
      "; set training.precision to ", has_float8 ? "fp8 or " : "", "bf16"));
}

absl::StatusOr<CudaOp> BindBlockGemm(const CudaOpContext& context,
                                     const Instruction& in) {
  RETURN_IF_ERROR(CheckStoresBf16Blocks(context));
  RETURN_IF_ERROR(CheckIsHopper());
  const auto& gemm = std::get<GemmAttributes>(in.attributes);
  const bool has_turned = !gemm.trans_a && !gemm.trans_b;
  const int64_t num_blocks = gemm.k / kFp8Block;
  const GemmFp8BlockArgs args = {
      .c = context.Output<void>(in, 0),
      .a = context.Input<void>(in, 0),
      .b = context.Input<void>(in, 1),
      .a_scale = context.Input<float>(in, 2),
      .b_scale = context.Input<float>(in, 3),
      .m = gemm.m,
      .n = gemm.n,
      .k = gemm.k,
      .a_stride = gemm.k,
      .b_stride = gemm.k,
      .c_stride = gemm.n,
      .a_scale_stride = gemm.m,
      .b_scale_stride = gemm.trans_a ? gemm.n
                        : has_turned ? gemm.n / kFp8Block
                                     : num_blocks,
      .fp32_output = IsFp32(context, in.outputs.at(0)),
      .accumulate = gemm.accumulate,
      .scales_of_b = gemm.trans_a ? Fp8ScalesOfB::kRows
                     : has_turned ? Fp8ScalesOfB::kTurnedSquares
                                  : Fp8ScalesOfB::kSquares};
  const int num_multiprocessors = context.kernels->gemm_multiprocessors();
  if (!AddsBias(gemm, context.coordinates)) {
    return CudaOp([args, num_multiprocessors](cudaStream_t stream) {
      return LaunchGemmFp8BlockSm90(args, num_multiprocessors, stream);
    });
  }
  const PlainAddBiasArgs bias = {.x = args.c,
                                 .bias = context.Input<void>(in, 4),
                                 .num_rows = gemm.m,
                                 .num_cols = gemm.n};
  return CudaOp([args, bias,
                 num_multiprocessors](cudaStream_t stream) -> absl::Status {
    RETURN_IF_ERROR(LaunchGemmFp8BlockSm90(args, num_multiprocessors, stream));
    return LaunchPlainAddBias(bias, ElementType::kBfloat16, stream);
  });
}

}  // namespace

void RegisterCudaFloat8BlockOps(CudaBinders& binders) {
  binders.Bind(OpKind::kQuantizeFloat8Blocks, BindQuantizeBlocks);
  binders.Bind(OpKind::kQuantizeFloat8Squares, BindQuantizeSquares);
  binders.Bind(OpKind::kFloat8BlockGemm, BindBlockGemm);
}

}  // namespace millrace
