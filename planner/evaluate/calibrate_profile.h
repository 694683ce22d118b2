// Corrects a hardware profile by measured runs of any framework.

#ifndef MILLRACE_PLANNER_EVALUATE_CALIBRATE_PROFILE_H_
#define MILLRACE_PLANNER_EVALUATE_CALIBRATE_PROFILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/evaluate/own_profile.h"
#include "planner/evaluate/published_runs.h"
#include "planner/profile/profile.h"

namespace millrace {

struct ProfileCorrection {
  HardwareProfile profile;
  std::vector<std::string> used;      // Ids.
  std::vector<std::string> outliers;  // Still more than 12 % off afterwards.
  // Medians of the absolute relative error over runs used and outliers.
  double median_error_before = 0;
  double median_error_after = 0;
};

// Moves the constants of the user's profile to the values that explain best the
// supported runs that the profile stands for. DeviationElsewhere() says how far
// each constant may be from its listed value. The search takes Gauss-Newton
// steps towards the maximum a posteriori, none of more than two standard
// deviations, and keeps the step with the least median error.
//
// The profile stays as it was if no step has a lower median error. It also
// stays if runs of several models disagree: cross-validation (Stone, 1974)
// predicts the runs of each model from those of the others, and the median
// error must fall by a third.
//
// The source of each changed constant says by which factor it changed and how
// many runs said so. step_error becomes that of these runs. Tables stay as they
// are, and shares do not exceed 1. Returns InvalidArgument with the first
// reasons if no run can be used.
absl::StatusOr<ProfileCorrection> CorrectProfile(
    const std::vector<PublishedRun>& runs, const RunRules& rules,
    const OwnProfile& own);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_CALIBRATE_PROFILE_H_
