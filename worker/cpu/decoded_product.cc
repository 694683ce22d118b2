#include "worker/cpu/decoded_product.h"

#include <cstdint>
#include <tuple>
#include <utility>
#include <variant>

#include "base/status_macros.h"
#include "base/units.h"
#include "kernels/pointwise/bias.h"
#include "worker/train/product_bias.h"

namespace millrace {

absl::StatusOr<BoundOp> BindDecodedProduct(const OpContext& context,
                                           const Instruction& in,
                                           DecodeOperands decode) {
  constexpr int64_t kAlignment = 64;
  constexpr int64_t kFloatBytes = sizeof(float);
  const auto& attributes = std::get<GemmAttributes>(in.attributes);
  const auto [m, n, k] = std::tuple(attributes.m, attributes.n, attributes.k);
  ASSIGN_OR_RETURN(GemmPlan * plan, context.kernels->Gemm(
                                        {.m = m,
                                         .n = n,
                                         .k = k,
                                         .trans_b = true,
                                         .accumulate = attributes.accumulate}));
  // The plan's own scratch comes first.
  const int64_t a_offset = RoundUp(plan->workspace_bytes(), kAlignment);
  const int64_t b_offset = RoundUp(a_offset + m * k * kFloatBytes, kAlignment);
  context.kernels->ReserveScratch(b_offset + n * k * kFloatBytes);
  const AddBiasArgs bias = {.x = context.Output<float>(in, 0),
                            .bias = AddsBias(attributes, context.coordinates)
                                        ? context.Input<float>(in, 4)
                                        : nullptr,
                            .num_rows = m,
                            .num_cols = n};
  return BoundOp([plan, bias, decode = std::move(decode), a_offset, b_offset,
                  kernels = context.kernels]() -> absl::Status {
    const int num_threads = kernels->num_threads();
    auto* const a = reinterpret_cast<float*>(kernels->scratch() + a_offset);
    auto* const b = reinterpret_cast<float*>(kernels->scratch() + b_offset);
    RETURN_IF_ERROR(decode(a, b, num_threads));
    RETURN_IF_ERROR(plan->Run(bias.x, a, b, kernels->scratch()));
    if (bias.bias == nullptr) return absl::OkStatus();
    return AddBias(bias, num_threads);
  });
}

}  // namespace millrace
