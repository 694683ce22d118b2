// Copies in e4m3 and their products. A CPU rounds to the same 8-bit numbers
// with the same scales as a GPU does, and multiplies what they mean in fp32.

#include <variant>

#include "base/status_macros.h"
#include "kernels/pointwise/cast.h"
#include "worker/cpu/decoded_product.h"
#include "worker/cpu/ops.h"

namespace millrace {
namespace {

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
  const auto& gemm = std::get<GemmAttributes>(in.attributes);
  const DecodeFloat8Args a = {.y = nullptr,
                              .x = context.Input<uint8_t>(in, 0),
                              .num_elements = gemm.m * gemm.k,
                              .unit = 1,
                              .format = Float8Format::kE4m3};
  const DecodeFloat8Args b = {.y = nullptr,
                              .x = context.Input<uint8_t>(in, 1),
                              .num_elements = gemm.n * gemm.k,
                              .unit = 1,
                              .format = Float8Format::kE4m3};
  return BindDecodedProduct(
      context, in,
      [a, b, a_unit = context.Input<float>(in, 2),
       b_unit = context.Input<float>(in, 3)](float* a_floats, float* b_floats,
                                             int num_threads) -> absl::Status {
        DecodeFloat8Args left = a, right = b;
        left.y = a_floats;
        left.unit = *a_unit * *b_unit;
        right.y = b_floats;
        RETURN_IF_ERROR(DecodeFloat8(left, num_threads));
        return DecodeFloat8(right, num_threads);
      });
}

}  // namespace

void RegisterFloat8Ops(CpuBinders& binders) {
  binders.Bind(OpKind::kQuantizeFloat8, BindQuantizeFloat8);
  binders.Bind(OpKind::kFloat8Gemm, BindFloat8Gemm);
}

}  // namespace millrace
