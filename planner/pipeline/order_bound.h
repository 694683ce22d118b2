// A lower bound on the time that a pipeline's passes take, over all orders of
// them. List scheduling stops when an order reaches it.

#ifndef MILLRACE_PLANNER_PIPELINE_ORDER_BOUND_H_
#define MILLRACE_PLANNER_PIPELINE_ORDER_BOUND_H_

#include <cstdint>
#include <vector>

#include "planner/pipeline/passes.h"

namespace millrace {

// Seconds that every order of the passes takes at least, if the passes of each
// stage hold no more than `memory_bytes` at once (by stage, above 0; empty: no
// limit). The largest of these bounds, over all stages:
//
// - The first micro-batch passes through the chunks before the stage's own;
//   then the stage runs all of its passes. After its last input gradient those
//   of the chunks before are still to come.
// - Before the first gradient reaches the stage, it can only run the forward
//   passes that its memory holds, as whole activations.
// - Every micro-batch holds its activations at least while it goes through the
//   chunks after the stage's own and comes back, and memory holds only so many
//   micro-batches at a time.
double LowerBoundOfMakespan(const PipelineCosts& costs,
                            const std::vector<int64_t>& memory_bytes);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PIPELINE_ORDER_BOUND_H_
