// A lower bound on the time of a pipeline's passes, over all orders in which
// they could run. List scheduling stops when an order reaches it.

#ifndef MILLRACE_PLANNER_PIPELINE_ORDER_BOUND_H_
#define MILLRACE_PLANNER_PIPELINE_ORDER_BOUND_H_

#include <cstdint>
#include <vector>

#include "planner/pipeline/passes.h"

namespace millrace {

// A lower bound in seconds, over all orders of the passes, if the passes of
// each stage hold no more than `memory_bytes` at once (by stage, above 0;
// empty: no limit). The largest of these bounds, over all stages:
//
// - A stage waits for the first micro-batch to pass through the earlier chunks,
//   then runs all of its own passes. After its last input gradient the earlier
//   chunks still have theirs to run.
// - Until the first gradient arrives, the stage can only run as many forward
//   passes as its memory holds, as whole activations.
// - A micro-batch holds its activations at least while it goes through the
//   later chunks and comes back, so only as many micro-batches as fit into
//   memory can be under way at a time.
double LowerBoundOfMakespan(const PipelineCosts& costs,
                            const std::vector<int64_t>& memory_bytes);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PIPELINE_ORDER_BOUND_H_
