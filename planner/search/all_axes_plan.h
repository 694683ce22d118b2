// Makes the Plan of a search over all axes. If workers can execute the chosen
// layout, the Plan has its simulated instructions.

#ifndef MILLRACE_PLANNER_SEARCH_ALL_AXES_PLAN_H_
#define MILLRACE_PLANNER_SEARCH_ALL_AXES_PLAN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/cost/op_cost.h"
#include "planner/search/search.h"

namespace millrace {

// FindPlan() with all_axes, but for Plan::search_seconds.
absl::StatusOr<Plan> PlanAllAxes(const SearchInput& input,
                                 const CostModel& cost, int64_t memory_limit);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_ALL_AXES_PLAN_H_
