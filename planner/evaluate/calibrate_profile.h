// Corrects a hardware profile by measured runs, of whatever framework.

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
  std::vector<std::string> outliers;  // More than 12 % off afterwards, too.
  // Of absolute relative errors of both.
  double median_error_before = 0;
  double median_error_after = 0;
};

// The profile with the constants that explain the supported runs on it (of the
// names that it stands for) best, held to its own by DeviationElsewhere
// (Gauss-Newton steps towards the maximum a posteriori, none beyond two
// standard deviations; of the steps and the profile as it was, the one with the
// least median error). As it was, too, where runs of several models do not
// agree: where each model's are not predicted better by a third, in the median,
// by what explains the others' (cross-validation; Stone, 1974). Each changed
// constant's source says what it was multiplied by and from how many runs;
// step_error is that of these runs. Tables stay. Shares end at 1.
// InvalidArgument if no run of `runs` can be used, with the first reasons.
absl::StatusOr<ProfileCorrection> CorrectProfile(
    const std::vector<PublishedRun>& runs, const RunRules& rules,
    const OwnProfile& own);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_CALIBRATE_PROFILE_H_
