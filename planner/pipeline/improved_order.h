// Local improvement of an order of passes. Internal to
// planner/pipeline/list_schedule.cc.

#ifndef MILLRACE_PLANNER_PIPELINE_IMPROVED_ORDER_H_
#define MILLRACE_PLANNER_PIPELINE_IMPROVED_ORDER_H_

#include <cstdint>
#include <vector>

#include "planner/pipeline/passes.h"

namespace millrace {

// Moves passes that are on the critical path and follow each other on a stage
// to either end of such a run, as in neighbourhoods of job shops (Grabowski and
// Wodecki, 2004), as long as one move makes the pipeline end earlier, or as
// early with stages that end earlier. Keeps each chunk's micro-batches in
// order, `memory_bytes` (by stage; empty: no limit) and `transfer_buffers`.
// Stops at `target_s`, or after about `work` passes timed. `order` must run
// within the limits, weight gradients apart.
void ImproveOrder(const PipelineCosts& costs,
                  const std::vector<int64_t>& memory_bytes,
                  int32_t transfer_buffers, double target_s, int64_t work,
                  PassOrder* order);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PIPELINE_IMPROVED_ORDER_H_
