// Training state described logically and located physically. Everything that
// saves, restores, reshards or exports uses this one description, so any layout
// can load what any other layout wrote.

#ifndef MILLRACE_FAULT_TRAINING_STATE_H_
#define MILLRACE_FAULT_TRAINING_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/program/parameters.h"

namespace millrace {

// A run of elements of one tensor, and where this rank keeps them. The tensor's
// global shape is [rows, cols] (vectors: [cols]); the rank's box of it is
// stored row-major, and the piece is elements [begin, end) of that stored box.
struct StatePiece {
  std::string tensor;  // "lm_head.weight", "lm_head.weight.exp_avg", ...
  int64_t rows;
  int64_t cols;
  bool is_vector;
  ParameterBox box;
  int64_t begin;
  int64_t end;
  float* data;  // Element `begin`; borrowed from the arena.
  // True if this rank writes the piece into checkpoints: over all ranks every
  // element of every tensor is written exactly once.
  bool is_owner;
  // False for parameters that other ranks update: from ZeRO 1 on they are those
  // of the step before until the next step gathers them.
  bool is_current = true;
};

struct StateBuffers {
  // StageParameters::num_elements; num_optimizer_elements, kept as moments are,
  // where the layout shards parameters.
  float* parameters;
  // num_optimizer_elements each. Both null: the moments are left out.
  float* exp_avg;
  float* exp_avg_sq;
  // `parameters` are master weights: num_optimizer_elements, kept as moments
  // are.
  bool master = false;
};

// All pieces that the rank holds, cut at the boundaries of its data slices.
// Under every ZeRO stage the owner of a run is the rank whose data index has
// that slice of the bucket; of tensor-replicated buckets, tensor index 0.
// Nobody owns the last stage's copy of a tied embedding.
std::vector<StatePiece> DescribeState(const StageParameters& parameters,
                                      const Layout& layout,
                                      MeshCoordinates coordinates,
                                      const StateBuffers& buffers);

// Those of `state` that this rank writes into checkpoints.
std::vector<StatePiece> OwnedPieces(const std::vector<StatePiece>& state);

}  // namespace millrace

#endif  // MILLRACE_FAULT_TRAINING_STATE_H_
