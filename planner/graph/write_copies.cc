// The copies in few bits that products of a layer read; see layer_writer.h.

#include "planner/graph/layer_writer.h"

namespace millrace {
namespace {

// The piece whose output a layer's product reads.
Piece InputOf(Piece product) {
  switch (product) {
    case Piece::kOutput:
      return Piece::kAttended;
    case Piece::kLast:
      return Piece::kActivation;
    default:
      return Piece::kNorm;
  }
}

}  // namespace

bool LayerWriter::quantizes_by_op() const {
  return layout_.gemm_format == GemmFormat::kFloat8 && style_.quantizes_by_op &&
         layout_.context == 1 && model_.moe.num_experts == 0 &&
         model_.mla.kv_rank == 0;
}

double LayerWriter::quantized_bytes() const {
  if (quantizes_by_op()) return Describe(FormatId::kFloat8).bytes;
  return Describe(RecipeOf(layout_).product).stored_bytes();
}

double LayerWriter::product_input_bytes() const {
  const bool keeps_copies = style_.keeps_quantized || quantizes_by_op();
  return quantizes() && keeps_copies ? quantized_bytes() : element_bytes_;
}

void LayerWriter::QuantizeInput(Piece piece, const LinearShape& shape) {
  const Piece input = InputOf(piece);
  const bool repeats_input = IsRecomputed(input);
  const bool repeats_product = IsRecomputed(piece);
  QuantizeAttributes copies = {.rows = shape.tokens,
                               .cols = shape.in,
                               .keeps_transposed = !repeats_input};
  graph_.ops.push_back(
      MakeOp(Phase::kForward, OpKind::kQuantizeFloat8, copies, 1));
  if (repeats_input) {
    copies.keeps_rows = repeats_product;
    copies.keeps_transposed = true;
    recompute_.push_back(
        MakeOp(Phase::kRecompute, OpKind::kQuantizeFloat8, copies, 1));
  } else if (repeats_product) {
    // The product runs again on the copy that it read before.
    Keep(input, quantized_bytes() * AsDouble(shape.tokens * shape.in));
  }
}

}  // namespace millrace
