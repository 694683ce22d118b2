// Builds the orders of passes that have a name (1F1B, interleaved, ZB-H1), and
// checks any order. planner/simulate/simulate_passes.h runs them.

#ifndef MILLRACE_PLANNER_PIPELINE_PASS_ORDER_H_
#define MILLRACE_PLANNER_PIPELINE_PASS_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/layout/layout.h"
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
// Parallelism", 2024, ZB-H1): stage s defers those of s micro-batches, the
// oldest first, and the rest to the end. Stage 0, which no other waits for,
// runs both gradients together.
std::vector<ChunkPass> ZeroBubble(PipelineShape shape, int32_t stage);

// The order that `schedule` names: those above with a chunk a stage, or
// interleaved 1F1B (Narayanan et al., 2021). Interleaved, chunk k of stage s is
// chunk k x num_stages + s. Micro-batches go through each of a stage's chunks
// in groups of num_stages, somewhat larger where num_stages does not divide
// them. Stage s first runs 2 (num_stages - s - 1) + (chunks a stage - 1) x
// group forward passes. InvalidArgument where chunks are not on the stages that
// the schedule means.
absl::StatusOr<PassOrder> OrderOf(Schedule schedule,
                                  const PipelineCosts& costs);

// InvalidArgument naming the first pass that is on a wrong stage, missing,
// there twice, or a weight gradient before its input gradient.
absl::Status CheckOrder(const PipelineCosts& costs, const PassOrder& order);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PIPELINE_PASS_ORDER_H_
