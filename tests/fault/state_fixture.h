// A small model's training state under any layout, for the tests of
// checkpoints: every element holds a value that says which it is.

#ifndef MILLRACE_TESTS_FAULT_STATE_FIXTURE_H_
#define MILLRACE_TESTS_FAULT_STATE_FIXTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fault/checkpoint.h"
#include "fault/file_system.h"
#include "fault/training_state.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"

namespace millrace {

// Every width divides by four and hardly by more, so that data slices start in
// the middle of rows, and slices of small buckets are all padding.
ModelSpec TinyModel();

// One rank's buffers and the pieces in them.
struct RankState {
  Rank rank;
  std::vector<float> parameters;
  std::vector<float> exp_avg;
  std::vector<float> exp_avg_sq;
  std::vector<StatePiece> pieces;
};
// All ranks, zeroed; with `master`, parameters are kept as master weights.
std::vector<RankState> MakeState(const ModelSpec& model, const Layout& layout,
                                 bool master = false);

// The value of element (row, col) of a tensor in a save marked `salt`: a hash,
// so no two elements are likely to be alike; exact in fp32, never a NaN or
// zero.
float ElementValue(const std::string& tensor, int64_t row, int64_t col,
                   int64_t salt);
void FillState(std::vector<RankState>& state, int64_t salt);
// The number of elements that do not hold their value.
int64_t CountWrong(const std::vector<RankState>& state, int64_t salt);

// {pipeline, tensor, data in 1, 2, 4} with at most `max_ranks`, ZeRO 0 and 1.
std::vector<Layout> AllLayouts(int32_t max_ranks);

CheckpointInfo InfoOf(const Layout& layout, int64_t step,
                      int64_t generation = 1);

// Writes every rank's part and commits, as a job of one process would.
absl::Status Save(FileSystem& files, const std::string& directory,
                  const CheckpointInfo& info,
                  const std::vector<RankState>& state, int32_t keep);

}  // namespace millrace

#endif  // MILLRACE_TESTS_FAULT_STATE_FIXTURE_H_
