// Runs the ops of planner/simulate/pass_ops.h in two ways. RunPassOps() runs
// one replica in the event loop. ReplicaRun is the fast way to run many
// replicas: each op takes what it took there, times the slow-down factors of
// its replica.

#ifndef MILLRACE_PLANNER_SIMULATE_RUN_PASS_OPS_H_
#define MILLRACE_PLANNER_SIMULATE_RUN_PASS_OPS_H_

#include <cstdint>
#include <vector>

#include "planner/profile/profile.h"
#include "planner/profile/seeded_noise.h"
#include "planner/simulate/pass_ops.h"

namespace millrace {

// Every op starts as soon as what it waits for has ended. While a stage
// computes and communicates (a transfer does at both ends), each goes on so
// much slower.
OpTimes RunPassOps(const StepOps& ops, const OverlapFactors& overlap);

// The slow-downs of the replicas of one step.
struct Disturbance {
  // Factors on what is computed, by replica and stage: [replica x num_stages +
  // stage].
  std::vector<double> slowdown;
  // Factors on transfers between a stage and the next one (the first follows
  // the last), by replica and stage; empty: 1.
  std::vector<double> transfers;
  // Factors on ops that all replicas run together, by stage; empty: 1.
  std::vector<double> gathers;
  std::vector<double> reductions;
  double noise_sigma = 0;  // As in PassOptions.
  uint64_t seed = 0;       // Decides the noise.
};

struct ReplicaTimes {
  double step_time_s = 0;
  std::vector<double> passes_end_s;  // By replica.
  // By op. For reductions and the optimizer, when they run. For passes and
  // transfers that these wait for, when the last replica's end.
  std::vector<double> common_start_s;
  std::vector<double> common_end_s;
  std::vector<int32_t> last_replica;  // The replica whose end that is.
};

// `alone` is the result of RunOps(). An op takes as long as there, slowed by
// the traffic it met there, times its factors. Reductions and the optimizer
// wait for the last replica. An op after a gather or a reduction within the
// step waits for the one that the replica would run by itself.
class ReplicaRun {
 public:
  // Borrows its arguments.
  ReplicaRun(const PassOps& ops, const OpTimes& alone, int32_t num_stages,
             int32_t num_replicas);

  ReplicaTimes Run(const Disturbance& disturbance) const;
  // When the ops of one replica run in the step that Run() gave.
  OpTimes TimesOf(int32_t replica, const Disturbance& disturbance,
                  const ReplicaTimes& step) const;
  // The seconds by which the op takes longer than alone, in `times`.
  double ExcessSeconds(size_t op, const OpTimes& times) const {
    return times.end_s[op] - times.start_s[op] - seconds_[op];
  }

 private:
  // Passes and transfers of kCount replicas from `first`: ends by op, and in
  // it by replica.
  template <int kCount>
  void RunBlock(const Disturbance& disturbance, const LogNormalFactors& noise,
                int32_t first, std::vector<double>& end_s) const;
  template <int kCount>
  void Collect(const std::vector<double>& end_s, int32_t first,
               ReplicaTimes& times) const;
  void RunTail(const Disturbance& disturbance, ReplicaTimes& times) const;

  const PassOps& ops_;
  const OpTimes& alone_;
  const int32_t num_stages_;
  const int32_t num_replicas_;
  std::vector<double> seconds_;  // By op, as it ran alone.
  std::vector<int32_t> draw_;    // By op: which noise it has; -1: none.
  std::vector<size_t> joined_;   // Ops whose last replica counts.
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_RUN_PASS_OPS_H_
