// Computes the step_error of each shipped profile: how far plans made with it
// are off, by published runs.

#ifndef MILLRACE_PLANNER_EVALUATE_PROFILE_ERRORS_H_
#define MILLRACE_PLANNER_EVALUATE_PROFILE_ERRORS_H_

#include <map>
#include <string>
#include <vector>

#include "planner/evaluate/evaluate.h"
#include "planner/profile/profile.h"

namespace millrace {

// By the profile's name, ErrorOfRuns (planner/profile/prediction_interval.h) of
// the supported runs of dense models of quality A-, A or A+ that were measured
// and that no calibration was made with.
std::map<std::string, StepError> ErrorsByProfile(
    const std::vector<RunPrediction>& predictions);

// The same of mixtures of experts, on all machines together, which have too few
// runs each. With the recipes that the runs name; a plan, which has none,
// supposes more (ErrorFor, planner/profile/prediction_interval.h). There must
// be one such run.
StepError ErrorOfExperts(const std::vector<RunPrediction>& predictions);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_PROFILE_ERRORS_H_
