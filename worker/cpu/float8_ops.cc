// Copies in e4m3 and their products. A CPU rounds to the same 8-bit numbers
// with the same scales as a GPU does, and multiplies what they mean in fp32.

#include <variant>

#include "base/status_macros.h"
#include "base/units.h"
#include "kernels/pointwise/bias.h"
#include "kernels/pointwise/cast.h"
#include "worker/cpu/ops.h"
#include "worker/train/product_bias.h"

namespace millrace {
namespace {

constexpr int64_t kScratchAlignment = 64;

BoundOp BindQuantizeFloat8(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<QuantizeAttributes>(in.attributes);
  float* const unit = context.Output<float>(in, 0);
  const bool given = attributes.amax_given;
  float* const amax =
      given ? context.Input<float>(in, 1) : context.Output<float>(in, 1);
  QuantizeFloat8Args args = {.y = nullptr,
                             .y_transposed = nullptr,
                             .amax = nullptr,
                             .x = context.Input<float>(in, 0),
                             .rows = attributes.rows,
                             .columns = attributes.cols,
                             .scale = 1,
                             .format = Float8Format::kE4m3};
  size_t next = given ? 1 : 2;
  if (attributes.keeps_rows) args.y = context.Output<uint8_t>(in, next++);
  if (attributes.keeps_transposed) {
    args.y_transposed = context.Output<uint8_t>(in, next);
  }
  return [args, unit, amax, given,
          num_threads = context.kernels->num_threads()]() -> absl::Status {
    if (!given) {
      *amax = 0;
      RETURN_IF_ERROR(Amax(
          {.amax = amax, .x = args.x, .num_elements = args.rows * args.columns},
          num_threads));
    }
    *unit = Float8Unit(*amax, args.format);
    QuantizeFloat8Args scaled = args;
    scaled.scale = Float8Scale(*amax, args.format);
    return QuantizeFloat8(scaled, num_threads);
  };
}

absl::StatusOr<BoundOp> BindFloat8Gemm(const OpContext& context,
                                       const Instruction& in) {
  const auto& attributes = std::get<GemmAttributes>(in.attributes);
  const auto [m, n, k] = std::tuple(attributes.m, attributes.n, attributes.k);
  ASSIGN_OR_RETURN(GemmPlan * plan, context.kernels->Gemm(
                                        {.m = m,
                                         .n = n,
                                         .k = k,
                                         .trans_b = true,
                                         .accumulate = attributes.accumulate}));
  // The plan's own scratch comes first, then what a and b mean.
  const int64_t a_offset = RoundUp(plan->workspace_bytes(), kScratchAlignment);
  const auto float_bytes = static_cast<int64_t>(sizeof(float));
  const int64_t b_offset =
      RoundUp(a_offset + m * k * float_bytes, kScratchAlignment);
  context.kernels->ReserveScratch(b_offset + n * k * float_bytes);
  const AddBiasArgs bias = {.x = context.Output<float>(in, 0),
                            .bias = AddsBias(attributes, context.coordinates)
                                        ? context.Input<float>(in, 4)
                                        : nullptr,
                            .num_rows = m,
                            .num_cols = n};
  const DecodeFloat8Args a = {.y = nullptr,
                              .x = context.Input<uint8_t>(in, 0),
                              .num_elements = m * k,
                              .unit = 1,
                              .format = Float8Format::kE4m3};
  const DecodeFloat8Args b = {.y = nullptr,
                              .x = context.Input<uint8_t>(in, 1),
                              .num_elements = n * k,
                              .unit = 1,
                              .format = Float8Format::kE4m3};
  return BoundOp([plan, bias, a, b, a_offset, b_offset,
                  kernels = context.kernels,
                  a_unit = context.Input<float>(in, 2),
                  b_unit = context.Input<float>(in, 3)]() -> absl::Status {
    const int num_threads = kernels->num_threads();
    DecodeFloat8Args left = a, right = b;
    left.y = reinterpret_cast<float*>(kernels->scratch() + a_offset);
    left.unit = *a_unit * *b_unit;
    right.y = reinterpret_cast<float*>(kernels->scratch() + b_offset);
    RETURN_IF_ERROR(DecodeFloat8(left, num_threads));
    RETURN_IF_ERROR(DecodeFloat8(right, num_threads));
    RETURN_IF_ERROR(plan->Run(bias.x, left.y, right.y, kernels->scratch()));
    if (bias.bias == nullptr) return absl::OkStatus();
    return AddBias(bias, num_threads);
  });
}

}  // namespace

void RegisterFloat8Ops(CpuBinders& binders) {
  binders.Bind(OpKind::kQuantizeFloat8, BindQuantizeFloat8);
  binders.Bind(OpKind::kFloat8Gemm, BindFloat8Gemm);
}

}  // namespace millrace
