// The rules that complete published runs, and where their files lie.

#ifndef MILLRACE_PLANNER_EVALUATE_RUN_RULES_H_
#define MILLRACE_PLANNER_EVALUATE_RUN_RULES_H_

#include <string>

#include "absl/status/statusor.h"
#include "planner/evaluate/framework_rules.h"
#include "planner/evaluate/known_models.h"

namespace millrace {

struct RunRules {
  FrameworkRules frameworks;  // frameworks.yaml
  KnownModels models;         // models.yaml
};

// Both files of a folder. NotFound if it lacks one; InvalidArgument with file,
// line and key for what is wrong in them.
absl::StatusOr<RunRules> LoadRunRules(const std::string& folder);

// The rules for a file of runs. Each file is looked for beside the runs, else
// among those that come with Millrace. NotFound names both places.
absl::StatusOr<RunRules> LoadRulesBeside(const std::string& runs_path);

// Whether a run's RunSetup::profile can have this name.
bool IsProfileOfRuns(const RunRules& rules, const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_RUN_RULES_H_
