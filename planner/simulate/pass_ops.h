// Lists the ops of a step at the level of passes, and which ops each one waits
// for. planner/simulate/simulate_passes.h runs them.

#ifndef MILLRACE_PLANNER_SIMULATE_PASS_OPS_H_
#define MILLRACE_PLANNER_SIMULATE_PASS_OPS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

struct ClusterOp {
  ClusterEventKind kind;
  Lane lane;
  int32_t stage;
  int32_t receiver = -1;  // Stage; of transfers.
  int32_t chunk_idx = -1;
  int32_t microbatch_idx = -1;
  int32_t bucket_idx = -1;
  double seconds = 0;  // Run alone.

  bool is_pass() const { return kind <= ClusterEventKind::kWeightGradient; }
  bool is_transfer() const {
    return kind == ClusterEventKind::kActivationTransfer ||
           kind == ClusterEventKind::kGradientTransfer;
  }
};

// True of passes and transfers, which each replica does for itself.
inline bool IsOwn(const ClusterOp& op) {
  return op.is_pass() || op.is_transfer();
}

// Ops in an order in which none waits for a later one. Lanes are in order, so
// the op before on the same lane is one of those waited for.
struct ClusterOps {
  std::vector<ClusterOp> ops;
  // Op i waits for waits[wait_begin[i]] up to waits[wait_begin[i + 1]].
  std::vector<int32_t> wait_begin;
  std::vector<int32_t> waits;

  std::span<const int32_t> WaitsOf(size_t op) const {
    return std::span(waits).subspan(wait_begin[op],
                                    wait_begin[op + 1] - wait_begin[op]);
  }
};

// Errors as of SimulateCluster. The optimizer's ops come last, and wait for
// every op of every stage.
absl::StatusOr<ClusterOps> ClusterOpsOf(const ClusterStep& step);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_PASS_OPS_H_
