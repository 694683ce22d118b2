#include "worker/train/initialize.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "kernels/pointwise/random_normal.h"

namespace millrace {
namespace {

void InitializeMatrix(const Parameter& parameter, const ParameterBox& box,
                      double std, uint64_t seed, float* out) {
  const int64_t box_cols = box.col_end - box.col_begin;
  const uint64_t stream = ParameterStream(parameter.name);
  for (int64_t row = box.row_begin; row < box.row_end; ++row) {
    FillNormal({.out = out + (row - box.row_begin) * box_cols,
                .std = std,
                .seed = seed,
                .stream = stream,
                .first_index =
                    static_cast<uint64_t>(row * parameter.cols + box.col_begin),
                .count = box_cols});
  }
}

}  // namespace

// FNV-1a, 64 bits: fixed for ever, unlike std::hash, since every rank and every
// later run must draw the same numbers.
uint64_t ParameterStream(const std::string& name) {
  uint64_t hash = 14695981039346656037u;
  for (const char character : name) {
    hash ^= static_cast<unsigned char>(character);
    hash *= 1099511628211u;
  }
  return hash;
}

void InitializeParameters(const ModelSpec& model, const Layout& layout,
                          MeshCoordinates coordinates,
                          const StageParameters& parameters, uint64_t seed,
                          float* flat) {
  std::fill(flat, flat + parameters.num_elements, 0.0f);
  for (const ParameterSlot& slot : parameters.slots) {
    const ParameterBox box =
        TensorBox(slot.parameter, layout.tensor, coordinates.tensor);
    float* out = flat + slot.offset;
    if (slot.parameter.is_vector) {
      std::fill(out, out + box.num_elements(),
                InitialVectorValue(model, slot.parameter.name));
    } else {
      InitializeMatrix(slot.parameter, box, model.init_std, seed, out);
    }
  }
}

void InitializePieces(const ModelSpec& model,
                      const std::vector<StatePiece>& pieces, uint64_t seed) {
  for (const StatePiece& piece : pieces) {
    if (absl::EndsWith(piece.tensor, ".exp_avg") ||
        absl::EndsWith(piece.tensor, ".exp_avg_sq")) {
      continue;
    }
    if (piece.is_vector) {
      std::fill(piece.data, piece.data + (piece.end - piece.begin),
                InitialVectorValue(model, piece.tensor));
      continue;
    }
    const uint64_t stream = ParameterStream(piece.tensor);
    const int64_t box_cols = piece.box.col_end - piece.box.col_begin;
    // Row by row of the box.
    int64_t i = piece.begin;
    while (i < piece.end) {
      const int64_t row = piece.box.row_begin + i / box_cols;
      const int64_t col = piece.box.col_begin + i % box_cols;
      const int64_t count = std::min(box_cols - i % box_cols, piece.end - i);
      FillNormal({.out = piece.data + (i - piece.begin),
                  .std = model.init_std,
                  .seed = seed,
                  .stream = stream,
                  .first_index = static_cast<uint64_t>(row * piece.cols + col),
                  .count = count});
      i += count;
    }
  }
}

}  // namespace millrace
