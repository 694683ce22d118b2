// A Schedule says in which order one pipeline stage runs the forward and
// backward passes of its micro-batches.

#ifndef MILLRACE_PLANNER_SCHEDULE_H_
#define MILLRACE_PLANNER_SCHEDULE_H_

#include <cstdint>
#include <vector>

namespace millrace {

struct PipelineShape {
  int32_t num_stages;
  int32_t num_microbatches;  // Per training step and data replica.
};

enum class PassKind : uint8_t { kForward, kBackward };

struct Pass {
  PassKind kind;
  int32_t microbatch_idx;
};

// One-forward-one-backward (1F1B, the PipeDream-Flush order): stage s runs
// ahead by num_stages - s micro-batches at most, so it keeps that many alive.
// The shape and the stage must be valid.
std::vector<Pass> OneForwardOneBackward(PipelineShape shape, int32_t stage);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SCHEDULE_H_
