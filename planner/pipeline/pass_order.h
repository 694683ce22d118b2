// Builds the orders of passes that have a name (1F1B, interleaved, ZB-H1), and
// checks any order. planner/simulate/simulate_passes.h runs them.

#ifndef MILLRACE_PLANNER_PIPELINE_PASS_ORDER_H_
#define MILLRACE_PLANNER_PIPELINE_PASS_ORDER_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/layout/layout.h"
#include "planner/pipeline/passes.h"

namespace millrace {

// One-forward-one-backward, whole backward passes:
// planner/pipeline/schedule.h's order. One chunk a stage.
PassOrder OneForwardOneBackwardOrder(const PipelineCosts& costs);

// Interleaved 1F1B (Narayanan et al., 2021): chunk k of stage s is chunk k x
// num_stages + s; micro-batches go through each of a stage's chunks in groups
// of num_stages, somewhat larger where num_stages does not divide them. Stage s
// first runs 2 (num_stages - s - 1) + (chunks a stage - 1) x group forward
// passes.
PassOrder InterleavedOrder(const PipelineCosts& costs);

// ZB-H1: planner/pipeline/schedule.h's order, weight gradients put off. One
// chunk a stage.
PassOrder ZeroBubbleOrder(const PipelineCosts& costs);

// The order that `schedule` names. InvalidArgument where chunks are not on the
// stages that it means.
absl::StatusOr<PassOrder> OrderOf(Schedule schedule,
                                  const PipelineCosts& costs);

// InvalidArgument naming the first pass that is on a wrong stage, missing,
// there twice, or a weight gradient before its input gradient.
absl::Status CheckOrder(const PipelineCosts& costs, const PassOrder& order);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PIPELINE_PASS_ORDER_H_
