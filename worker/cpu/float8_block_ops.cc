// Copies in e4m3 with a scale for each block, and their products. A CPU rounds
// to the same 8-bit numbers with the same scales as a GPU does, and multiplies
// what they mean in fp32.

#include <variant>

#include "base/status_macros.h"
#include "kernels/pointwise/quantize_blocks.h"
#include "worker/cpu/decoded_product.h"
#include "worker/cpu/ops.h"

namespace millrace {
namespace {

static_assert(kQuantizeBlock == kFloat8Block);

BoundOp BindQuantizeBlocks(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<QuantizeAttributes>(in.attributes);
  QuantizeBlocksArgs args = {.y = nullptr,
                             .units = nullptr,
                             .y_transposed = nullptr,
                             .units_transposed = nullptr,
                             .x = context.Input<float>(in, 0),
                             .rows = attributes.rows,
                             .columns = attributes.cols};
  size_t next = 0;
  if (attributes.keeps_rows) {
    args.y = context.Output<uint8_t>(in, next++);
    args.units = context.Output<float>(in, next++);
  }
  if (attributes.keeps_transposed) {
    args.y_transposed = context.Output<uint8_t>(in, next++);
    args.units_transposed = context.Output<float>(in, next);
  }
  return [args, num_threads = context.kernels->num_threads()] {
    return QuantizeBlocks(args, num_threads);
  };
}

BoundOp BindQuantizeSquares(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<QuantizeAttributes>(in.attributes);
  QuantizeSquaresArgs args = {.y = nullptr,
                              .y_transposed = nullptr,
                              .units = context.Output<float>(in, 0),
                              .x = context.Input<float>(in, 0),
                              .rows = attributes.rows,
                              .columns = attributes.cols};
  size_t next = 1;
  if (attributes.keeps_rows) args.y = context.Output<uint8_t>(in, next++);
  if (attributes.keeps_transposed) {
    args.y_transposed = context.Output<uint8_t>(in, next);
  }
  return [args, num_threads = context.kernels->num_threads()] {
    return QuantizeSquares(args, num_threads);
  };
}

// Where the units of b lie, by the product: [n / 128, k / 128] of a weight as
// stored, [k / 128, n / 128] of a transposed one, [k / 128, n] else.
void SetUnitsOfB(const GemmAttributes& gemm, DecodeBlocksArgs* b) {
  const int64_t groups = gemm.n / kQuantizeBlock;
  const int64_t blocks = gemm.k / kQuantizeBlock;
  b->unit_rows = gemm.trans_a ? 1 : kQuantizeBlock;
  b->unit_row_stride = gemm.trans_b ? blocks : 1;
  b->unit_column_stride = gemm.trans_a ? gemm.n : gemm.trans_b ? 1 : groups;
}

absl::StatusOr<BoundOp> BindBlockGemm(const OpContext& context,
                                      const Instruction& in) {
  const auto& gemm = std::get<GemmAttributes>(in.attributes);
  const DecodeBlocksArgs a = {.y = nullptr,
                              .x = context.Input<uint8_t>(in, 0),
                              .units = context.Input<float>(in, 2),
                              .rows = gemm.m,
                              .columns = gemm.k,
                              .unit_rows = 1,
                              .unit_row_stride = 1,
                              .unit_column_stride = gemm.m};
  DecodeBlocksArgs b = {.y = nullptr,
                        .x = context.Input<uint8_t>(in, 1),
                        .units = context.Input<float>(in, 3),
                        .rows = gemm.n,
                        .columns = gemm.k};
  SetUnitsOfB(gemm, &b);
  return BindDecodedProduct(context, in,
                            [a, b](float* a_floats, float* b_floats,
                                   int num_threads) -> absl::Status {
                              DecodeBlocksArgs left = a, right = b;
                              left.y = a_floats;
                              right.y = b_floats;
                              RETURN_IF_ERROR(DecodeBlocks(left, num_threads));
                              return DecodeBlocks(right, num_threads);
                            });
}

}  // namespace

void RegisterFloat8BlockOps(CpuBinders& binders) {
  binders.Bind(OpKind::kQuantizeFloat8Blocks, BindQuantizeBlocks);
  binders.Bind(OpKind::kQuantizeFloat8Squares, BindQuantizeSquares);
  binders.Bind(OpKind::kFloat8BlockGemm, BindBlockGemm);
}

}  // namespace millrace
