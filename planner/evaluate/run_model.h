// Builds the model of a published run.

#ifndef MILLRACE_PLANNER_EVALUATE_RUN_MODEL_H_
#define MILLRACE_PLANNER_EVALUATE_RUN_MODEL_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/evaluate/framework_rules.h"
#include "planner/evaluate/known_models.h"
#include "planner/evaluate/published_runs.h"
#include "planner/layout/model.h"

namespace millrace {

// InvalidArgument for a row that leaves `what` open.
absl::Status NotStated(absl::string_view what);

// Completes what the row states by the known models and by the framework's
// rules, and adds a sentence to `assumptions` for each. Returns InvalidArgument
// with the reason for a model that stays incomplete or that the planner has no
// arithmetic for.
absl::StatusOr<ModelSpec> ModelOfRun(const PublishedRun& run,
                                     const KnownModels& known_models,
                                     const FrameworkRule& framework,
                                     std::vector<std::string>* assumptions);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_RUN_MODEL_H_
