// Lists the ops of a step at the level of passes, and which ops each one waits
// for. planner/simulate/simulate_passes.h runs them.

#ifndef MILLRACE_PLANNER_SIMULATE_PASS_OPS_H_
#define MILLRACE_PLANNER_SIMULATE_PASS_OPS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/simulate/event_loop.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

// The pass, transfer, gather or reduction that an op of the event loop is.
struct PassOp {
  PassEventKind kind;
  int32_t chunk_idx = -1;
  int32_t microbatch_idx = -1;
  int32_t bucket_idx = -1;

  bool is_pass() const { return kind <= PassEventKind::kWeightGradient; }
  // True of passes and transfers, which each replica does for itself.
  bool is_own() const { return kind <= PassEventKind::kGradientTransfer; }
};

// Ops in an order in which none waits for a later one.
struct PassOps {
  StepOps step;
  std::vector<PassOp> ops;  // By op of the step.
};

PassEventKind EventKindOf(ChunkPassKind kind);

// Lists ops one by one, in any order between lanes.
class PassOpList {
 public:
  explicit PassOpList(int32_t num_stages);

  // Adds an op behind all others on its lane. Returns its index.
  int32_t Add(const StepOp& op, const PassOp& what);
  // A negative `for_op` stands for nothing.
  void Wait(int32_t op, int32_t for_op);
  // In place of what it waits for so far.
  void WaitOnlyFor(int32_t op, std::vector<int32_t> waits) {
    waits_[op] = std::move(waits);
  }

  StepOp& step_op(int32_t op) { return ops_[op]; }
  const PassOp& what(int32_t op) const { return what_[op]; }
  // The last op on a lane of the stage; -1: none.
  int32_t LastOf(int32_t stage, Lane lane) const {
    return lanes_[stage][static_cast<int>(lane)];
  }

  void Reserve(size_t num_ops);
  // Internal naming the passes that wait for each other.
  absl::StatusOr<PassOps> Sorted() const;

 private:
  absl::Status Deadlock(const std::vector<int32_t>& num_waits) const;

  std::vector<StepOp> ops_;
  std::vector<PassOp> what_;  // By op.
  std::vector<std::vector<int32_t>> waits_;
  std::vector<std::array<int32_t, kNumLanes>> lanes_;  // Last op, by stage.
};

// Errors as of SimulatePasses. The optimizer's ops come last, and wait for
// every op of every stage.
absl::StatusOr<PassOps> PassOpsOf(const PassStep& step);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_PASS_OPS_H_
