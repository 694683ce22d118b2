// Compares the closed form of a step (planner/cost/closed_form.h) with measured
// runs: predicts each run and computes the error.

#ifndef MILLRACE_PLANNER_EVALUATE_EVALUATE_H_
#define MILLRACE_PLANNER_EVALUATE_EVALUATE_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/closed_form.h"
#include "planner/evaluate/published_runs.h"
#include "planner/evaluate/run_rules.h"
#include "planner/evaluate/run_setup.h"
#include "planner/profile/profile.h"

namespace millrace {

// How the step time depends on one constant of the profile.
struct Sensitivity {
  std::string constant;  // Profiles list constants in any order.
  double value = 0;      // d log(step time) / d log(constant).
};

// One run and its prediction.
struct RunPrediction {
  PublishedRun run;
  absl::Status status;  // If not OK, why the run is unsupported.
  // Filled only if the status is OK:
  RunSetup setup;
  StepPrediction predicted;
  // Predicted seconds, corrected by the calibration if there is one.
  double step_time_s = 0;
  // Predicted peak in bytes of what the framework's allocator has handed out,
  // or reserved if its logs say that. The overhead is left out, since no
  // allocator sees it. A run of kind "memory_formula" also leaves out what its
  // formula leaves out: working memory, and weights, gradients and moments of
  // embedding and head.
  double memory_bytes = 0;
  // In the order of the profile's `constants`; empty unless asked for.
  std::vector<Sensitivity> sensitivities;
  // The calibration used this run, so errors do not count it.
  bool is_calibration = false;
  // The calibration used a run of its group (CalibrationGroup()).
  bool is_calibrated = false;

  bool is_supported() const { return status.ok(); }
  // Predicted over measured, less one; absent if either is unknown.
  std::optional<double> step_time_error() const;
  std::optional<double> memory_error() const;
  // The reason why there is no step_time_error(); empty if there is one.
  std::string why_no_error() const;
};

// Returns the profile of that name, or an error that says why there is none.
using ProfileSource =
    std::function<absl::StatusOr<HardwareProfile>(const std::string& name)>;

struct PredictionOptions {
  bool sensitivities = false;
};
// Predicts one run. A run with a fault is unsupported for that reason.
RunPrediction PredictRun(const PublishedRun& run, const RunRules& rules,
                         const ProfileSource& profiles,
                         const PredictionOptions& options);

// Returns the profiles of `load`. It calls `load` once for each name, even if
// that fails.
ProfileSource CachedProfiles(ProfileSource load);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_EVALUATE_H_
