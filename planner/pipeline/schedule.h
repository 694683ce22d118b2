// The order in which one pipeline stage runs its passes, for the schedules that
// follow a fixed rule. planner/pipeline/list_schedule.h computes orders from
// costs instead.

#ifndef MILLRACE_PLANNER_PIPELINE_SCHEDULE_H_
#define MILLRACE_PLANNER_PIPELINE_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "planner/pipeline/passes.h"

namespace millrace {

struct PipelineShape {
  int32_t num_stages;
  int32_t num_microbatches;  // Per training step and data replica.
};

// Shape and stage must be valid. Stage s has chunk s alone.

// One-forward-one-backward (1F1B, the PipeDream-Flush order): stage s runs
// ahead by num_stages - s micro-batches at most, so it keeps that many alive.
std::vector<ChunkPass> OneForwardOneBackward(PipelineShape shape,
                                             int32_t stage);

// The same with weight gradients apart (Qi et al., "Zero Bubble Pipeline
// Parallelism", 2024, ZB-H1): stage s puts off those of s micro-batches, the
// oldest first, and the rest to the end. Stage 0, which no other waits for,
// runs both gradients together.
std::vector<ChunkPass> ZeroBubble(PipelineShape shape, int32_t stage);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PIPELINE_SCHEDULE_H_
