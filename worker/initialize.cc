#include "worker/initialize.h"

#include <algorithm>
#include <string>

#include "kernels/random_normal.h"

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
      std::fill(out, out + box.num_elements(), 1.0f);
    } else {
      InitializeMatrix(slot.parameter, box, model.init_std, seed, out);
    }
  }
}

}  // namespace millrace
