// Translates a published run for the planner: its model, its layout, how its
// framework computes and the profile of its machine. Nothing is guessed
// silently. A rule fills each gap of the row and is listed in `assumptions`; a
// row that no rule completes is refused.

#ifndef MILLRACE_PLANNER_EVALUATE_RUN_SETUP_H_
#define MILLRACE_PLANNER_EVALUATE_RUN_SETUP_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/layer_work.h"
#include "planner/evaluate/published_runs.h"
#include "planner/evaluate/run_rules.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"

namespace millrace {

struct RunSetup {
  ModelSpec model;
  Layout layout;
  Implementation implementation;
  // Name of the hardware's profile (planner/profile/shipped_profiles.h).
  std::string profile;
  bool memory_is_of_first_rank = false;  // FrameworkRule::logs_first_rank.
  double reserved_per_allocated = 1;     // As in FrameworkRule.
  std::vector<std::string> assumptions;  // Sentences without a full stop.
};

// Sets in `setup`, which must have its model and layout, what the last recipe
// of `rule` that fits the run does, and says so in `assumptions`. The recipe's
// recompute counts where the row states none.
void ApplyRecipe(const FrameworkRule& rule, const PublishedRun& run,
                 RunSetup* setup);

// Returns InvalidArgument with the reason for a run that cannot be predicted:
// its dims or layout are not stated, the planner does not know its device or
// architecture (the message names those it knows), or the model cannot have the
// layout.
absl::StatusOr<RunSetup> SetUpRun(const PublishedRun& run,
                                  const RunRules& rules);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_RUN_SETUP_H_
