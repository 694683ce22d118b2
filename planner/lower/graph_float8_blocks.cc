// Copies in 8 bits with a scale for each block; see graph_builder.h.

#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "planner/lower/graph_builder.h"

namespace millrace {
namespace {

constexpr int64_t kUnitBytes = sizeof(float);

int64_t NumBlocks(int64_t size) {
  return RoundUp(size, kFloat8Block) / kFloat8Block;
}

// The elements that the units of a matrix take of the persistent buffer, in
// which those of each matrix begin at a multiple of kBufferAlignment.
int64_t UnitsOfMatrix(int64_t rows, int64_t cols) {
  return RoundUp(NumBlocks(rows) * NumBlocks(cols) * kUnitBytes,
                 kBufferAlignment) /
         kUnitBytes;
}

}  // namespace

int64_t GraphBuilder::NumCopiedLayers() const {
  const LayerRange layers = StageLayers(model_, layout_, stage_);
  int64_t num_copied = 0;
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    if (!model_.is_stored_layer(layer)) ++num_copied;
  }
  return num_copied;
}

int64_t GraphBuilder::NumCopiedElements() const {
  const int64_t width =
      shapes_.qkv_width() + shapes_.query_width() +
      (model_.num_inner_projections() + 1) * shapes_.ffn_hidden;
  return NumCopiedLayers() * shapes_.hidden * width;
}

int64_t GraphBuilder::NumBlockUnits() const {
  const StageShapes& s = shapes_;
  const int64_t inner = model_.num_inner_projections() * s.ffn_hidden;
  return NumCopiedLayers() * (UnitsOfMatrix(s.qkv_width(), s.hidden) +
                              UnitsOfMatrix(s.hidden, s.query_width()) +
                              UnitsOfMatrix(inner, s.hidden) +
                              UnitsOfMatrix(s.hidden, s.ffn_hidden));
}

void GraphBuilder::EmitQuantizeBlocks(const std::string& name,
                                      const LayerOp& op, TensorId x,
                                      Float8Copies* copies) {
  auto attributes = std::get<QuantizeAttributes>(op.attributes);
  if (kind_ == ProgramKind::kValidation) attributes.keeps_transposed = false;
  GraphOp quantize{.kind = op.kind,
                   .phase = op.phase,
                   .name = name,
                   .attributes = attributes,
                   .inputs = {x},
                   .outputs = {}};
  const auto output = [&](const char* what, size_t i) {
    quantize.outputs.push_back(
        AddOutput(absl::StrCat(name, "/", what), op.kind, attributes, i));
    return quantize.outputs.back();
  };
  if (attributes.keeps_rows) {
    copies->rows = output("rows", 0);
    copies->unit = output("row_units", 1);
  }
  if (attributes.keeps_transposed) {
    copies->transposed = output("transposed", 2);
    copies->transposed_unit = output("column_units", 3);
  }
  Emit(std::move(quantize));
}

Float8Copies GraphBuilder::BlockCopiesOf(const std::string& name, Phase phase,
                                         Weight& weight, bool transposed) {
  const bool is_persistent = !layout_.shards_parameters();
  if (is_persistent && weight.copies.unit >= 0) return weight.copies;
  constexpr OpKind kKind = OpKind::kQuantizeFloat8Squares;
  QuantizeAttributes attributes = {
      .rows = weight.rows,
      .cols = weight.cols,
      .keeps_rows = is_persistent || !transposed,
      .keeps_transposed =
          is_persistent ? kind_ != ProgramKind::kValidation : transposed};
  Float8Copies copies;
  if (is_persistent) {
    copies.unit =
        AddView(absl::StrCat(name, "/units"), graph_.persistent.float8_units,
                num_units_, {NumBlocks(weight.rows), NumBlocks(weight.cols)});
    num_units_ += UnitsOfMatrix(weight.rows, weight.cols);
    copies.rows =
        NextCopy(absl::StrCat(name, "/rows"), weight.rows, weight.cols);
    copies.transposed =
        NextCopy(absl::StrCat(name, "/transposed"), weight.cols, weight.rows);
  } else {
    copies.unit = AddOutput(absl::StrCat(name, "/units"), kKind, attributes, 0);
    TensorId& copy = transposed ? copies.transposed : copies.rows;
    copy =
        transposed
            ? AddOutput(absl::StrCat(name, "/transposed"), kKind, attributes, 2)
            : AddOutput(absl::StrCat(name, "/rows"), kKind, attributes, 1);
  }
  copies.transposed_unit = copies.unit;
  GraphOp quantize{.kind = kKind,
                   .phase = phase,
                   .name = name,
                   .attributes = attributes,
                   .inputs = {ParameterOf(weight, phase)},
                   .outputs = {copies.unit},
                   .first_microbatch_only = is_persistent};
  if (attributes.keeps_rows) quantize.outputs.push_back(copies.rows);
  if (attributes.keeps_transposed) {
    quantize.outputs.push_back(copies.transposed);
  }
  if (is_persistent) weight.copies = copies;
  Emit(std::move(quantize));
  return copies;
}

TensorId GraphBuilder::NextCopy(std::string name, int64_t rows, int64_t cols) {
  const TensorId id = AddView(std::move(name), graph_.persistent.float8_weights,
                              num_copied_elements_, {rows, cols});
  num_copied_elements_ += rows * cols;
  return id;
}

}  // namespace millrace
