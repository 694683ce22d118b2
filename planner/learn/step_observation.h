// Reduces one measured step to the mean time of each op shape on an undisturbed
// rank: known slow-downs are divided out. The result is small, whatever the
// number of instructions and ranks, so that a run can keep many.

#ifndef MILLRACE_PLANNER_LEARN_STEP_OBSERVATION_H_
#define MILLRACE_PLANNER_LEARN_STEP_OBSERVATION_H_

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/cost/op_cost.h"
#include "planner/learn/measured_noise.h"
#include "planner/profile/op_shape.h"
#include "planner/program/program.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// Under what circumstances an op ran.
struct OpContext {
  // Ranks of the host that computed or communicated meanwhile, to the nearest
  // whole number, but no more than it has; 1 where ranks share no cores, 0 for
  // communication.
  int32_t num_computing = 1;
  // For more than half of the time the rank computed and communicated at once.
  bool overlapped = false;
  friend auto operator<=>(const OpContext&, const OpContext&) = default;
};

struct OpObservation {
  OpShape shape;
  OpContext context;
  double seconds = 0;     // Of a call alone, launch included: mean.
  double slowdown = 1;    // That was divided out: mean.
  int64_t num_calls = 0;  // That these are means of, over all ranks.
  friend bool operator==(const OpObservation&, const OpObservation&) = default;
};

struct StepObservation {
  int64_t generation = 0;
  int64_t step = 0;
  double step_time_s = 0;
  // Between what an instruction waited for and its start: median. From the last
  // instruction to the next step. Zero where the step was measured op by op.
  double launch_s = 0;
  double between_steps_s = 0;
  std::vector<OpObservation> ops;  // By shape, then context.
  // Of passes: a rank's forward, or backward, passes of one micro-batch each;
  // where it has one of each in a step, those of its stage's ranks. Slow-downs
  // are divided out as of `ops`.
  Scatter passes;
  // Ranks most of whose ops were so much slower than those of the others that
  // nothing of them is in `ops`.
  std::vector<int32_t> slow_ranks;
  // The share of a host's processors that processes other than the ranks kept
  // busy; -1: not known. Whoever observes a run fills it.
  double others_share = -1;
  // Collectives and transfers left out: of ranks on several hosts that are no
  // neighbours, while profiles measure groups of neighbours, and of groups that
  // reach beyond the ranks measured, which no row prices.
  int64_t num_unplaced = 0;
  friend bool operator==(const StepObservation&,
                         const StepObservation&) = default;
};

struct ObservationOptions {
  // The step was measured op by op while others run as one CUDA graph: gaps
  // between its ops are of the measuring.
  bool ran_apart = false;
};

// `timeline` holds every rank of the Programs' layout (`programs[i]` is stage
// i), with every instruction; `cost` is of the profile that the plan was made
// with. What a rank waits for others is no time of an op: a collective takes as
// long as for the member that arrives last, which waits least. The median of a
// rank's calls would miss that it is off its core now and then, so calls are
// averaged; over ranks the mean is of those that are AreCredible
// (planner/learn/outliers.h). Loading data is not looked at: it runs ahead.
//
// Returns InvalidArgument saying which rank or instruction is missing, foreign
// or has impossible times.
absl::StatusOr<StepObservation> ObserveStep(std::span<const Program> programs,
                                            const CostModel& cost,
                                            const Timeline& timeline,
                                            const ObservationOptions& options);

// One line of JSON, without a line end.
std::string StepObservationToJson(const StepObservation& observation);
// Returns InvalidArgument saying what is wrong or of another version.
absl::StatusOr<StepObservation> StepObservationFromJson(absl::string_view json);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_STEP_OBSERVATION_H_
