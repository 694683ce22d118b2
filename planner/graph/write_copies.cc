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
  return IsFloat8(layout_.gemm_format) && style_.quantizes_by_op &&
         layout_.context == 1 && model_.moe.num_experts == 0 &&
         model_.mla.kv_rank == 0;
}

OpKind LayerWriter::float8_copy() const {
  return layout_.gemm_format == GemmFormat::kFloat8Blocks
             ? OpKind::kQuantizeFloat8Blocks
             : OpKind::kQuantizeFloat8;
}

OpKind LayerWriter::float8_product() const {
  return layout_.gemm_format == GemmFormat::kFloat8Blocks
             ? OpKind::kFloat8BlockGemm
             : OpKind::kFloat8Gemm;
}

double LayerWriter::quantized_bytes() const {
  const NumericFormat& product = Describe(RecipeOf(layout_).product);
  const bool has_one_scale =
      quantizes_by_op() && layout_.gemm_format == GemmFormat::kFloat8;
  return has_one_scale ? product.bytes : product.stored_bytes();
}

double LayerWriter::product_input_bytes() const {
  const bool keeps_copies = style_.keeps_quantized || quantizes_by_op();
  return quantizes() && keeps_copies ? quantized_bytes() : element_bytes_;
}

bool LayerWriter::AskForAmax(LayerOp* writer) const {
  // Blocks are small enough that the op which copies them finds theirs.
  if (float8_copy() != OpKind::kQuantizeFloat8) return false;
  if (!CanFindAmax(writer->kind)) return false;
  std::visit(
      [](auto& attributes) {
        if constexpr (requires { attributes.finds_amax; }) {
          attributes.finds_amax = true;
        }
      },
      writer->attributes);
  return true;
}

void LayerWriter::AskForAmaxOfGradients() {
  // The ops of the backward pass stand in the order of the forward pass here.
  for (size_t i = 0; i + 1 < backward_.size(); ++i) {
    if (backward_[i].kind != OpKind::kQuantizeFloat8) continue;
    std::get<QuantizeAttributes>(backward_[i].attributes).amax_given =
        AskForAmax(&backward_[i + 1]);
  }
}

void LayerWriter::QuantizeInput(Piece piece, const LinearShape& shape) {
  const Piece input = InputOf(piece);
  const bool repeats_input = IsRecomputed(input);
  const bool repeats_product = IsRecomputed(piece);
  QuantizeAttributes copies = {.rows = shape.tokens,
                               .cols = shape.in,
                               .amax_given = AskForAmax(&graph_.ops.back()),
                               .keeps_transposed = !repeats_input};
  graph_.ops.push_back(MakeOp(Phase::kForward, float8_copy(), copies, 1));
  if (repeats_input) {
    copies.amax_given = AskForAmax(&recompute_.back());
    copies.keeps_rows = repeats_product;
    copies.keeps_transposed = true;
    recompute_.push_back(MakeOp(Phase::kRecompute, float8_copy(), copies, 1));
  } else if (repeats_product) {
    // The product runs again on the copy that it read before.
    Keep(input, quantized_bytes() * AsDouble(shape.tokens * shape.in));
  }
}

}  // namespace millrace
