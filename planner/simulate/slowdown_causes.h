// Finds which ops make a disturbed step longer than an undisturbed one, by
// walking its critical path. Internal to planner/simulate/simulate_passes.cc.

#ifndef MILLRACE_PLANNER_SIMULATE_SLOWDOWN_CAUSES_H_
#define MILLRACE_PLANNER_SIMULATE_SLOWDOWN_CAUSES_H_

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "planner/simulate/pass_ops.h"
#include "planner/simulate/run_pass_ops.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

// Walks each step's critical path from its end: from an op to the one that it
// waited for longest, first through what replicas do together, then through the
// passes and transfers of the replica that kept the others waiting.
class CauseFinder {
 public:
  // Borrows its arguments.
  CauseFinder(const PassOps& ops, const ReplicaRun& replicas)
      : ops_(ops), replicas_(replicas) {}

  void AddStep(const Disturbance& disturbance, const ReplicaTimes& times);
  std::vector<SlowdownCause> Causes() const;  // Per mean step, most first.

 private:
  // Kind, stage, receiver and replica.
  using Key = std::tuple<SlowdownCause::Kind, int32_t, int32_t, int32_t>;

  const PassOps& ops_;
  const ReplicaRun& replicas_;
  std::map<Key, double> seconds_;
  int32_t num_steps_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_SLOWDOWN_CAUSES_H_
