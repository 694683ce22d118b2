// Weights in e4m3, made of the master weights. Operands in the order that
// planner/program/op_table.cc gives them.

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/pointwise/cast_bf16.h"
#include "kernels/pointwise/cast_weights.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/cuda/ops/ops.h"
#include "worker/train/weight_matrices.h"

namespace millrace {
namespace {

// Where the slice begins in an operand, and where the bucket would.
template <typename T>
T* BucketIn(const CudaOpContext& context, BufferId buffer,
            const BucketSlice& slice) {
  const Buffer& operand = context.program->buffers[buffer];
  return reinterpret_cast<T*>(context.arenas->At(operand)) +
         BeginIn(operand, slice) - slice.begin;
}

CudaOp BindWeightAmax(const CudaOpContext& context, const Instruction& in) {
  const auto& attributes = std::get<WeightBucketAttributes>(in.attributes);
  const BucketSlice slice =
      SliceOfWeights(context.layout, context.coordinates, attributes);
  const float* const x = BucketIn<float>(context, in.inputs[0], slice);
  float* const amaxes = context.Output<float>(in, 0);
  const auto parts = MatricesIn(attributes, slice);
  std::array<WeightAmaxArgs, kFloat8Matrices> all;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = {.amax = amaxes + i,
              .x = x + parts[i].begin,
              .num_elements = parts[i].num_elements};
  }
  return [all, amaxes](cudaStream_t stream) -> absl::Status {
    RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(amaxes, 0, kNumberStride * sizeof(float), stream),
        "zero amaxes of weights"));
    for (const WeightAmaxArgs& args : all) {
      RETURN_IF_ERROR(LaunchWeightAmax(args, stream));
    }
    return absl::OkStatus();
  };
}

CudaOp BindQuantizeWeights(const CudaOpContext& context,
                           const Instruction& in) {
  const auto& attributes = std::get<WeightBucketAttributes>(in.attributes);
  const BucketSlice slice =
      SliceOfWeights(context.layout, context.coordinates, attributes);
  const float* const x = BucketIn<float>(context, in.inputs[0], slice);
  auto* const y = BucketIn<uint8_t>(context, in.outputs[1], slice);
  const auto parts = MatricesIn(attributes, slice);
  std::array<QuantizeWeightArgs, kFloat8Matrices> all;
  for (size_t i = 0; i < all.size(); ++i) {
    const GatheredAmaxes amaxes = AmaxesOf(context.layout, attributes, i);
    all[i] = {.y = y + parts[i].begin,
              .unit = context.Output<float>(in, 0) +
                      static_cast<int64_t>(i) * kNumberStride,
              .x = x + parts[i].begin,
              .num_elements = parts[i].num_elements,
              .amaxes = context.Input<float>(in, 1) + amaxes.first,
              .num_amaxes = amaxes.num_ranks,
              .amax_stride = amaxes.stride};
  }
  return [all, units = context.Output<float>(in, 0)](
             cudaStream_t stream) -> absl::Status {
    RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(
            units, 0, kFloat8Matrices * kNumberStride * sizeof(float), stream),
        "zero units of weights"));
    for (const QuantizeWeightArgs& args : all) {
      RETURN_IF_ERROR(LaunchQuantizeWeight(args, stream));
    }
    return absl::OkStatus();
  };
}

CudaOp BindTransposeFloat8(const CudaOpContext& context,
                           const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const TransposeFloat8CudaArgs args = {.y = context.Output<void>(in, 0),
                                        .x = context.Input<void>(in, 0),
                                        .x_row_stride = attributes.cols,
                                        .rows = attributes.rows,
                                        .columns = attributes.cols};
  return [args](cudaStream_t stream) {
    return LaunchTransposeFloat8(args, stream);
  };
}

}  // namespace

void RegisterCudaWeightOps(CudaBinders& binders) {
  binders.Bind(OpKind::kWeightAmax, BindWeightAmax);
  binders.Bind(OpKind::kQuantizeWeights, BindQuantizeWeights);
  binders.Bind(OpKind::kTransposeFloat8, BindTransposeFloat8);
}

}  // namespace millrace
