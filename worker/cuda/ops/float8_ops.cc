// Copies in e4m3 and their products. Gradients in e5m2, which has a bit less of
// mantissa, learnt less (docs/results/2026-11-24-fp8-h200.md). Operands in the
// order that planner/program/op_table.cc gives them.

#include <cuda_runtime.h>

#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/gemm/gemm_fp8.h"
#include "kernels/pointwise/cast_bf16.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/cuda/ops/ops.h"
#include "worker/train/product_bias.h"

namespace millrace {
namespace {

absl::Status CheckStoresBf16(const CudaOpContext& context) {
  if (IsBf16(context)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "8-bit products on GPUs read copies of bf16 tensors, and the layout "
      "stores fp32");
}

// One pass for the largest magnitude, unless it is given, and one for the
// copies.
absl::StatusOr<CudaOp> BindQuantizeFloat8(const CudaOpContext& context,
                                          const Instruction& in) {
  RETURN_IF_ERROR(CheckStoresBf16(context));
  const auto& attributes = std::get<QuantizeAttributes>(in.attributes);
  const bool given = attributes.amax_given;
  float* const amax =
      given ? context.Input<float>(in, 1) : context.Output<float>(in, 1);
  const AmaxBf16Args largest = {.amax = amax,
                                .x = context.Input<void>(in, 0),
                                .x_row_stride = attributes.cols,
                                .rows = attributes.rows,
                                .columns = attributes.cols};
  QuantizeFloat8Bf16Args copies = {.y = nullptr,
                                   .y_transposed = nullptr,
                                   .amax = nullptr,
                                   .x = largest.x,
                                   .x_row_stride = attributes.cols,
                                   .rows = attributes.rows,
                                   .columns = attributes.cols,
                                   .scale = nullptr,
                                   .scale_of_amax = amax,
                                   .unit = context.Output<float>(in, 0),
                                   .format = Float8Format::kE4m3};
  size_t next = given ? 1 : 2;
  if (attributes.keeps_rows) copies.y = context.Output<void>(in, next++);
  if (attributes.keeps_transposed) {
    copies.y_transposed = context.Output<void>(in, next);
  }
  if (given) {
    return CudaOp([copies](cudaStream_t stream) {
      return LaunchQuantizeFloat8Bf16(copies, stream);
    });
  }
  return CudaOp([largest, copies](cudaStream_t stream) -> absl::Status {
    RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(largest.amax, 0, sizeof(float), stream), "zero amax"));
    RETURN_IF_ERROR(LaunchAmaxBf16(largest, stream));
    return LaunchQuantizeFloat8Bf16(copies, stream);
  });
}

absl::StatusOr<CudaOp> BindFloat8Gemm(const CudaOpContext& context,
                                      const Instruction& in) {
  RETURN_IF_ERROR(CheckStoresBf16(context));
  GemmAttributes attributes = std::get<GemmAttributes>(in.attributes);
  attributes.bias = AddsBias(attributes, context.coordinates);
  ASSIGN_OR_RETURN(const GemmFp8Plan* plan,
                   context.kernels->Float8Gemm(
                       attributes, IsFp32(context, in.outputs.at(0))));
  ASSIGN_OR_RETURN(void* workspace,
                   ScratchOf(context, plan->workspace_bytes()));
  const GemmFp8Args args = {
      .c = context.Output<void>(in, 0),
      .a = context.Input<void>(in, 0),
      .b = context.Input<void>(in, 1),
      .a_scale = context.Input<float>(in, 2),
      .b_scale = context.Input<float>(in, 3),
      .bias = attributes.bias ? context.Input<void>(in, 4) : nullptr,
      .workspace = workspace};
  return CudaOp(
      [plan, args](cudaStream_t stream) { return plan->Run(args, stream); });
}

}  // namespace

void RegisterCudaFloat8Ops(CudaBinders& binders) {
  binders.Bind(OpKind::kQuantizeFloat8, BindQuantizeFloat8);
  binders.Bind(OpKind::kFloat8Gemm, BindFloat8Gemm);
}

}  // namespace millrace
