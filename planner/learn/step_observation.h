// Reduces one measured step to the mean time of each op shape on an undisturbed
// rank; known slow-downs are divided out. The result is small for any number of
// instructions and ranks, so that a run can keep many.

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

// The circumstances under which an op ran.
struct OpContext {
  // Ranks of the host that computed or communicated at the same time, as a
  // whole number of at most the host's ranks. It is 1 if ranks share no cores,
  // and 0 for communication.
  int32_t num_computing = 1;
  // The rank computed and communicated at once for more than half of the time.
  bool overlapped = false;
  friend auto operator<=>(const OpContext&, const OpContext&) = default;
};

struct OpObservation {
  OpShape shape;
  OpContext context;
  double seconds = 0;     // Mean of a call alone, with its launch.
  double slowdown = 1;    // Mean factor that was divided out.
  int64_t num_calls = 0;  // Calls averaged, on all ranks.
  friend bool operator==(const OpObservation&, const OpObservation&) = default;
};

struct StepObservation {
  int64_t generation = 0;
  int64_t step = 0;
  double step_time_s = 0;
  // `launch_s` is the median time from the end of what an instruction waited
  // for to its start. `between_steps_s` runs from the last instruction to the
  // next step. Both are zero if the step was measured op by op.
  double launch_s = 0;
  double between_steps_s = 0;
  std::vector<OpObservation> ops;  // Ordered by shape, then context.
  // Scatter of passes. A rank's forward passes of the micro-batches are
  // compared with one another, and so are its backward passes. If a rank has
  // only one of each in a step, the ranks of its stage are compared. Slow-downs
  // are divided out as for `ops`.
  Scatter passes;
  // Ranks of which most ops were much slower than those of other ranks. `ops`
  // holds none of their ops.
  std::vector<int32_t> slow_ranks;
  // The share of a host's processors that other processes than the ranks kept
  // busy; -1 if unknown. The caller of ObserveStep() fills it.
  double others_share = -1;
  // Number of collectives and transfers that were left out because no row of a
  // profile prices them. Their ranks lie on several hosts and are no
  // neighbours, or their groups reach beyond the measured ranks.
  int64_t num_unplaced = 0;
  friend bool operator==(const StepObservation&,
                         const StepObservation&) = default;
};

struct ObservationOptions {
  // Whether the step was measured op by op while others run as one CUDA graph.
  // The measuring itself then causes the gaps between ops.
  bool ran_apart = false;
};

// Observes one step. `timeline` has every instruction of every rank of the
// Programs' layout, and `programs` are those of all ranks, by ProgramIdx().
// `cost` belongs to the profile
// that the plan was made with.
//
// Waiting for others is no part of an op. A collective counts with the time of
// the member that arrives last, which waits least. Calls of a rank are
// averaged, because a median would hide that the rank is off its core now and
// then. Over ranks, the mean of those that are AreCredible() counts
// (planner/learn/outliers.h). Loading data is ignored, since it runs ahead.
//
// Returns InvalidArgument that names the rank or instruction that is missing,
// unknown or has impossible times.
absl::StatusOr<StepObservation> ObserveStep(std::span<const Program> programs,
                                            const CostModel& cost,
                                            const Timeline& timeline,
                                            const ObservationOptions& options);

// Writes one line of JSON, without a line end.
std::string StepObservationToJson(const StepObservation& observation);
// Returns InvalidArgument that says what is wrong, also for another version.
absl::StatusOr<StepObservation> StepObservationFromJson(absl::string_view json);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_STEP_OBSERVATION_H_
