// Learning: what the measured steps of a run teach the hardware profile
// that the next plan is made with.
//
// The error log(measured / listed) of a row is modelled as a Gaussian process
// (planner/learn/gaussian_process.h). All rows of an op kind share one part of
// the error, which also corrects shapes that the run did not have. Another part
// belongs to the row alone. If ranks share cores, there is one more part for
// each number of ranks that compute at once.
//
// The rest of the step's time, which ops do not explain, is the time that ranks
// wait for one another, or the way they share cores. The scatter of passes and
// steps becomes the profile's pass_noise and run_noise
// (planner/profile/prediction_interval.h).

#ifndef MILLRACE_PLANNER_LEARN_LEARN_FROM_RUN_H_
#define MILLRACE_PLANNER_LEARN_LEARN_FROM_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/learn/step_observation.h"
#include "planner/profile/profile.h"

namespace millrace {

// Limits on the change that one run may make. A measured row that is off by
// more than a factor of 3 is refused, a guessed row by more than 10, an
// overhead by more than 10. The refusal of a row is reported if the op takes
// more than 0.2 % of the time of all ops. Contention and overlap factors move
// by a factor of 1.5 at most.
inline constexpr double kMostRowRatio = 3;
inline constexpr double kMostGuessRatio = 10;
inline constexpr double kMostContentionRatio = 1.5;
inline constexpr double kMostLaunchRatio = 10;
inline constexpr double kMostArrivalSpread = 1;

struct MeasuredRun {
  // The name of the run directory, with the millisecond of its start. No
  // profile learns twice from one name.
  std::string name;
  std::string date;  // ISO 8601, UTC.
  ModelSpec model;
  Layout layout;
  // The profile that the plan was made with and that observations refer to.
  HardwareProfile planned_with;
  // Median step time, in seconds. It leaves out the first step of a generation,
  // steps touched by a failure, and steps measured apart.
  double step_time_s = 0;
  std::vector<double> step_times_s;    // The same steps, in order.
  std::vector<StepObservation> steps;  // Steps measured op by op.
  bool ran_apart = false;              // As in ObservationOptions.
};

// One value of the profile before and after.
struct LearntValue {
  std::string value;  // ShapeText() of a row, or the key of another value.
  double before = 0;
  double after = 0;
  int64_t num_samples = 0;  // 0: learnt from others of its kind.
  bool is_new = false;      // A row that the tables did not have.
};

struct LearntProfile {
  HardwareProfile profile;
  LearntRun run;                    // As the profile records it.
  std::vector<LearntValue> learnt;  // The largest change first.
  // One sentence for each refused value and for whatever was not learnt, with
  // the reason.
  std::vector<std::string> refused;
};

// `profile` is the newest version, which other runs may have taught since this
// run was planned.
//
// If steps were measured apart, their ops are shortened by one factor where
// together they explain more time than the other steps took. Updates are
// damped. The first run moves a value nine tenths of the way, the second half.
// Later ones follow the mean of all runs but move at least a third of the way,
// so that a machine that changes is followed. The profile keeps the last three
// updates of each value and the last twenty runs. step_error becomes the error
// of these runs, each as it was predicted before the profile learnt from it.
//
// Returns AlreadyExists if the profile learnt from the run before,
// FailedPrecondition if it is of another machine or precision than
// `planned_with`, InvalidArgument if there is no step to learn from or the
// result would predict the run worse than before.
absl::StatusOr<LearntProfile> LearnFromRun(const MeasuredRun& run,
                                           const HardwareProfile& profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_LEARN_FROM_RUN_H_
