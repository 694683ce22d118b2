// How often a job writes checkpoints if that is left to us: as often as loses
// least time, from what one costs and how often the job fails. Pure.

#ifndef MILLRACE_COORDINATOR_CHECKPOINT_INTERVAL_H_
#define MILLRACE_COORDINATOR_CHECKPOINT_INTERVAL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "planner/job/job.h"
#include "planner/search/plan.h"

namespace millrace {

struct ObservedFailures {
  int32_t num_devices = 1;
  int32_t num_failures = 0;  // That cost steps, in this run.
  double seconds = 0;        // For which the run has gone on.
};

// Mean seconds between failures of the whole job. What the job says of a
// device, or else 50,000 hours (Llama 3: 419 stops of 16,384 GPUs in 54 days),
// counts as one failure in as many device-hours, to which those of the run are
// added: the mean of a gamma distribution, which is conjugate to the failures'.
double MeanTimeBetweenFailures(const GoodputSpec& spec,
                               const ObservedFailures& observed);

struct CheckpointCost {
  // Training stands still so long for each: the host, measured, and on GPUs the
  // device, as the plan predicts it (planner/search/snapshot_plan.h).
  double stall_s = 0;
  double write_s = 0;  // From its step until it counts, beside training.
  bool is_measured = false;
};

// The assumed cost of the first checkpoint: a rank's part is copied, unless the
// plan predicts the stall, and those of a host's ranks are written to a disk of
// 500 MB/s, at `bytes_per_second` a rank at most (0: any).
CheckpointCost GuessCheckpointCost(int64_t part_bytes, int32_t ranks_per_host,
                                   const std::optional<SnapshotPlan>& predicted,
                                   int64_t bytes_per_second);

// Says that checkpoints of a fixed interval are due before the one before can
// be written at the job's rate, so that training waits. Empty if they are not.
std::string SlowWriteWarning(const CheckpointSpec& spec, int64_t part_bytes,
                             double step_s);

struct IntervalInput {
  CheckpointCost cost;
  double step_s = 0;
  double mean_time_between_failures_s = 0;
  double recovery_s = 0;  // Without the steps that are trained again.
};

struct IntervalChoice {
  int64_t steps = 1;
  // For people: "every 120 steps (58 s): a checkpoint costs 12.0 ms of training
  // and counts after 2 s (measured), a failure is expected every 3 h".
  std::string description;
};

// The interval with the largest useful share of the time
// (planner/fleet/goodput.h, after Young and Daly), and no shorter than writing
// one takes, since training waits for the one before.
IntervalChoice ChooseCheckpointInterval(const IntervalInput& input);

// Whether the interval is worth changing: the useful shares hardly depend on it
// near the best one.
bool IsWorthChanging(int64_t now_steps, int64_t steps);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CHECKPOINT_INTERVAL_H_
