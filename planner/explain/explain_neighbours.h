// Adds the neighbours of the chosen layout to the alternatives: for each axis
// and choice, the best layout with another value.

#ifndef MILLRACE_PLANNER_EXPLAIN_EXPLAIN_NEIGHBOURS_H_
#define MILLRACE_PLANNER_EXPLAIN_EXPLAIN_NEIGHBOURS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "planner/explain/what_if.h"
#include "planner/layout/layout.h"
#include "planner/search/plan.h"

namespace millrace {

// Adds to the plan's alternatives, which stay best first, the best layouts with
// half and twice each axis and micro-batch, and with each other ZeRO stage,
// recompute and schedule, as far as the job leaves these open, there is such a
// layout, and no other alternative or the choice differs from it in chunks
// alone. About fifteen searches. `planned` has the devices that the plan was
// found for. Errors are `planner`'s.
absl::Status AddNeighbours(const PlanningCase& planned, const Planner& planner,
                           Plan* plan);

// The number of passes that list scheduling orders in a replica's step; 0 if it
// orders none.
int64_t NumListedPasses(const Plan& plan);

// Whether two layouts are the same but for their chunks a stage.
bool DifferInChunksOnly(Layout a, Layout b);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_NEIGHBOURS_H_
