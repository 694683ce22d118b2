// Finds how a framework computed one run: applies the cases and recipes of its
// rule (framework_rules.h) that fit the run.

#ifndef MILLRACE_PLANNER_EVALUATE_FRAMEWORK_CASES_H_
#define MILLRACE_PLANNER_EVALUATE_FRAMEWORK_CASES_H_

#include <cstdint>

#include "planner/evaluate/framework_rules.h"
#include "planner/evaluate/published_runs.h"
#include "planner/evaluate/run_setup.h"

namespace millrace {

// The version in the section of the run's source, "... [26.04.01 NeMo
// Container]", by ParseVersion(); 0 where there is none.
int32_t VersionOfRun(const PublishedRun& run);

// Each sets what fits the run in `setup`, which must have its model and layout,
// and says so in `assumptions`.
void ApplyCases(const FrameworkRule& rule, const PublishedRun& run,
                RunSetup* setup);
// The recipe's recompute counts where the row states none.
void ApplyRecipe(const FrameworkRule& rule, const PublishedRun& run,
                 RunSetup* setup);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_FRAMEWORK_CASES_H_
