// The rules that complete published runs, and the search for their files.

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

// Reads both files of a folder. Returns NotFound if one is missing,
// InvalidArgument with file, line and key if one has an error.
absl::StatusOr<RunRules> LoadRunRules(const std::string& folder);

// Reads the rules for a file of runs. Each of the two files is taken from the
// folder of the runs if it is there, else from those that come with Millrace.
// NotFound names both places.
absl::StatusOr<RunRules> LoadRulesBeside(const std::string& runs_path);

// Whether some run can have a RunSetup::profile of this name.
bool IsProfileOfRuns(const RunRules& rules, const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_RUN_RULES_H_
