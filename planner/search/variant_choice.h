// Switches a plan to a variant of its layout, if the variant is faster or
// pinned.

#ifndef MILLRACE_PLANNER_SEARCH_VARIANT_CHOICE_H_
#define MILLRACE_PLANNER_SEARCH_VARIANT_CHOICE_H_

#include <vector>

#include "absl/status/status.h"
#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/program/program.h"
#include "planner/search/plan.h"

namespace millrace {

// Keeps the Programs of the plan's layout, and their hashes.
void TakePrograms(std::vector<Program> programs, Plan* plan);

// Predicts `variant` by instructions, and changes the plan's layout,
// prediction, timeline and hashes to it where it is faster, or in any case
// where that is pinned. Errors as PredictLayout's.
absl::Status TakeVariant(const ModelSpec& model, const Layout& variant,
                         const CostModel& cost, bool is_pinned, Plan* plan);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_VARIANT_CHOICE_H_
