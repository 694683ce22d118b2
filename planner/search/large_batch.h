// A global batch that no layout can cut into few enough micro-batches of a size
// that memory holds. Such batches are refused before anything is lowered.

#ifndef MILLRACE_PLANNER_SEARCH_LARGE_BATCH_H_
#define MILLRACE_PLANNER_SEARCH_LARGE_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "planner/job/layout_space.h"
#include "planner/layout/layout.h"

namespace millrace {

// Drops from `layouts`, which are those of `space`, the ones that cannot be
// executed whatever else is chosen: their Programs have too many instructions
// (MicrobatchBoundsOf()), or the inputs of a stage's layers alone, for one
// micro-batch, take more than `memory_limit` bytes. Drops nothing where all
// layouts have few micro-batches, as in any usual batch.
//
// Returns InvalidArgument if none is left, with the largest batch that these
// two bounds allow.
absl::Status DropHopelessLayouts(const LayoutSpace& space, int64_t memory_limit,
                                 std::vector<Layout>* layouts);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_LARGE_BATCH_H_
