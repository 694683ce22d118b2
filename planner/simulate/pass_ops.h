// Lists the ops of a step at the level of passes, and which ops each one waits
// for. planner/simulate/simulate_passes.h runs them.

#ifndef MILLRACE_PLANNER_SIMULATE_PASS_OPS_H_
#define MILLRACE_PLANNER_SIMULATE_PASS_OPS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/simulate/event_loop.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

// The pass, transfer, gather or reduction that an op of the event loop is.
struct PassOp {
  ClusterEventKind kind;
  int32_t chunk_idx = -1;
  int32_t microbatch_idx = -1;
  int32_t bucket_idx = -1;

  bool is_pass() const { return kind <= ClusterEventKind::kWeightGradient; }
  // True of passes and transfers, which each replica does for itself.
  bool is_own() const { return kind <= ClusterEventKind::kGradientTransfer; }
};

// Ops in an order in which none waits for a later one.
struct PassOps {
  StepOps step;
  std::vector<PassOp> ops;  // By op of the step.
};

// Errors as of SimulateCluster. The optimizer's ops come last, and wait for
// every op of every stage.
absl::StatusOr<PassOps> PassOpsOf(const ClusterStep& step);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_PASS_OPS_H_
