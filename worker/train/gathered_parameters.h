// Finds the parameters that a rank gathers from their owners in each step and
// keeps until the next one (HasGathered() of fault/replica_check.h). Ranks hash
// them to compare what they gathered with what the owners had.

#ifndef MILLRACE_WORKER_TRAIN_GATHERED_PARAMETERS_H_
#define MILLRACE_WORKER_TRAIN_GATHERED_PARAMETERS_H_

#include <cstdint>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/program/program.h"

namespace millrace {

// A slice of what one collective gathers. A hash of slice i covers the parts of
// all collectives.
struct GatheredPart {
  int32_t slice;    // Whose owners are the data ranks with this slice_of().
  BufferId buffer;  // Of the training Program, in the persistent arena.
  int64_t offset_bytes;  // In the buffer.
  int64_t num_bytes;     // A multiple of 16, at a multiple of 16.
  // Words of 8 bytes that the slice has in collectives before: where this part
  // begins in a hash of the slice. Alike on all ranks of a data group.
  uint64_t first_word;
};

struct GatheredParts {
  // Hashed before the step that gathers them: the rank's own slice, which the
  // optimizer updates in that step.
  std::vector<GatheredPart> before_step;
  // Hashed after it: the slices of other ranks, and of its own slice what is
  // made at the start of a step, as weights in 8 bits are.
  std::vector<GatheredPart> after_step;
};

// Both are empty where a rank keeps nothing that it gathered.
GatheredParts GatheredPartsOf(const Program& training,
                              const MeshCoordinates& rank);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_GATHERED_PARAMETERS_H_
