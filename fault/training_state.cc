#include "fault/training_state.h"

#include <algorithm>

#include "base/check.h"

namespace millrace {
namespace {

// The common values of the pieces of one slice of one bucket.
struct SliceContext {
  const StageParameters* parameters;
  const Bucket* bucket;
  int64_t begin;  // Elements of the flat buffer.
  int64_t end;
  int32_t tensor_size;
  int32_t tensor_idx;
  bool is_owner;
  bool is_current;
};

// Adds the pieces of one slice kept in `data`, whose element 0 is the slice's
// first. `suffix` names the kind of state.
void AddSlicePieces(const SliceContext& slice, const char* suffix, float* data,
                    std::vector<StatePiece>& pieces) {
  for (const int32_t slot_idx : slice.bucket->slots) {
    const ParameterSlot& slot = slice.parameters->slots[slot_idx];
    const int64_t num_elements = slot.local_rows * slot.local_cols;
    const int64_t begin = std::max(slot.offset, slice.begin);
    const int64_t end = std::min(slot.offset + num_elements, slice.end);
    if (begin >= end) continue;
    const Parameter& parameter = slot.parameter;
    const ParameterBox box =
        TensorBox(parameter, slice.tensor_size, slice.tensor_idx);
    CHECK(box.num_elements() == num_elements) << parameter.name;
    pieces.push_back({.tensor = parameter.name + suffix,
                      .rows = parameter.rows,
                      .cols = parameter.cols,
                      .is_vector = parameter.is_vector,
                      .box = box,
                      .begin = begin - slot.offset,
                      .end = end - slot.offset,
                      .data = data + (begin - slice.begin),
                      .is_owner = slice.is_owner,
                      .is_current = slice.is_current});
  }
}

// A bucket is written in as many equal parts as there are data ranks, each by
// one of them. Where there are copies of the state, a slice has that many
// parts, and each of its holders writes one.
int32_t OwnedPart(int32_t data_idx, int32_t num_data, int32_t copies) {
  const int32_t num_slices = num_data / copies;
  return data_idx % num_slices * copies + data_idx / num_slices;
}

}  // namespace

std::vector<StatePiece> DescribeState(const StageParameters& parameters,
                                      const Layout& layout,
                                      MeshCoordinates coordinates,
                                      const StateBuffers& buffers) {
  std::vector<StatePiece> pieces;
  const bool slices_alone = buffers.master || layout.shards_parameters();
  // ZeRO leaves each group of data ranks a copy of the state.
  const int32_t copies = layout.zero == 0 ? 1 : layout.data_groups;
  // Start of this bucket's moments when only the rank's own slices are kept.
  int64_t own_offset = 0;
  for (const Bucket& bucket : parameters.buckets) {
    CHECK(bucket.num_elements % layout.data == 0) << bucket.name;
    const int64_t slice_elements = bucket.num_elements / layout.data;
    for (int32_t data_idx = 0; data_idx < layout.data; ++data_idx) {
      const bool own_slice =
          data_idx / copies == coordinates.data % (layout.data / copies);
      const bool owns =
          data_idx == OwnedPart(coordinates.data, layout.data, copies);
      const int64_t begin = bucket.offset + data_idx * slice_elements;
      const SliceContext slice = {
          .parameters = &parameters,
          .bucket = &bucket,
          .begin = begin,
          .end = begin + slice_elements,
          .tensor_size = layout.tensor,
          .tensor_idx = coordinates.tensor,
          .is_owner = owns && !bucket.is_copy &&
                      (!bucket.tensor_replicated || coordinates.tensor == 0),
          .is_current = layout.zero == 0 || own_slice};
      if (!slices_alone) {
        AddSlicePieces(slice, "", buffers.parameters + begin, pieces);
      }
      if (layout.zero != 0 && !own_slice) continue;
      const int64_t offset =
          layout.zero == 0 ? begin
                           : own_offset + data_idx % copies * slice_elements;
      CHECK(offset + slice_elements <= parameters.num_optimizer_elements)
          << bucket.name;
      if (slices_alone) {
        AddSlicePieces(slice, "", buffers.parameters + offset, pieces);
      }
      if (buffers.exp_avg == nullptr) continue;
      AddSlicePieces(slice, ".exp_avg", buffers.exp_avg + offset, pieces);
      AddSlicePieces(slice, ".exp_avg_sq", buffers.exp_avg_sq + offset, pieces);
    }
    own_offset += copies * slice_elements;
  }
  return pieces;
}

std::vector<StatePiece> OwnedPieces(const std::vector<StatePiece>& state) {
  std::vector<StatePiece> owned;
  for (const StatePiece& piece : state) {
    if (piece.is_owner && piece.begin < piece.end) owned.push_back(piece);
  }
  return owned;
}

}  // namespace millrace
