// The Programs of one rank's training, and what they say about a step that
// hangs.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_STEP_PROGRAMS_H_
#define MILLRACE_WORKER_CUDA_TRAIN_STEP_PROGRAMS_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "planner/layout/layout.h"
#include "planner/layout/mesh.h"
#include "planner/layout/model.h"
#include "planner/program/program.h"
#include "worker/communicate/rendezvous_store.h"
#include "worker/cuda/nccl/nccl_watch.h"

namespace millrace {

// All run on one pair of arenas, one at a time.
struct StepPrograms {
  Program training;
  Program validation;
  Program publish;

  int64_t persistent_bytes() const { return training.persistent_arena_bytes; }
  int64_t step_bytes() const {
    return std::max({training.step_arena_bytes, validation.step_arena_bytes,
                     publish.step_arena_bytes});
  }
};
absl::StatusOr<std::unique_ptr<StepPrograms>> BuildStepPrograms(
    const ModelSpec& model, const Layout& layout, const MeshCoordinates& rank);

// Explains why a rank's training step hangs: asks the others through the store
// how far they are, for `patience`. Returns DeadlineExceeded with the call that
// all wait for, who takes part and who is missing.
absl::Status ExplainHang(const ModelSpec& model, const Layout& layout,
                         Rank rank, const RankProgress& progress,
                         RendezvousStore& store, absl::Duration patience);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_STEP_PROGRAMS_H_
