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

// Adds neighbours of the chosen layout to the plan's alternatives, which stay
// best first. A neighbour is the best layout with half or twice one axis or the
// micro-batch, or with another ZeRO stage, recompute or schedule.
//
// Leaves out neighbours that the job's pins exclude, and layouts that differ
// from the choice or an alternative only in their chunks. This takes about
// fifteen searches. `planned` must have the devices that the plan was found
// for. Errors are those of `planner`.
absl::Status AddNeighbours(const PlanningCase& planned, const Planner& planner,
                           Plan* plan);

// Returns the number of passes that list scheduling orders in a replica's step;
// 0 if it orders none.
int64_t NumListedPasses(const Plan& plan);

// Whether two layouts differ at most in their chunks a stage.
bool DifferInChunksOnly(Layout a, Layout b);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_NEIGHBOURS_H_
