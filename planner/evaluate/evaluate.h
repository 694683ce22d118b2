// Holds the closed form of a step (planner/cost/closed_form.h) to runs that
// were measured: what it predicts for each, and how far off that is.

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

// How a step time depends on a constant of the profile.
struct Sensitivity {
  std::string constant;  // Its name: profiles list them in any order.
  double value = 0;      // d log(step time) / d log(constant).
};

// One run, and what the model says of it.
struct RunPrediction {
  PublishedRun run;
  absl::Status status;  // Not OK: unsupported, with the reason.
  // With OK alone:
  RunSetup setup;
  StepPrediction predicted;
  // Predicted seconds; where a calibration applies, corrected by it.
  double step_time_s = 0;
  // Bytes that the framework's allocator has handed out at its peak, or
  // reserved where its logs say that: what the model predicts without its
  // overhead, which no allocator sees. Of a run of kind "memory_formula"
  // without what its formula leaves out: working memory, and weights, gradients
  // and moments of embedding and head.
  double memory_bytes = 0;
  // In the order of the profile's `constants`; only where asked for.
  std::vector<Sensitivity> sensitivities;
  // Calibration was made with it, so errors leave it out.
  bool is_calibration = false;
  // A run of its group (CalibrationGroup) did.
  bool is_calibrated = false;

  bool is_supported() const { return status.ok(); }
  // Predicted over measured, less one; absent where either is.
  std::optional<double> step_time_error() const;
  std::optional<double> memory_error() const;
  // Why there is no step_time_error; empty where there is one.
  std::string why_no_error() const;
};

// The profile of that name, or why there is none.
using ProfileSource =
    std::function<absl::StatusOr<HardwareProfile>(const std::string& name)>;

struct PredictionOptions {
  bool sensitivities = false;
};
// A run with a fault is unsupported for that reason.
RunPrediction PredictRun(const PublishedRun& run, const RunRules& rules,
                         const ProfileSource& profiles,
                         const PredictionOptions& options);

// Profiles of `load`, each loaded once, whatever comes of it.
ProfileSource CachedProfiles(ProfileSource load);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_EVALUATE_H_
