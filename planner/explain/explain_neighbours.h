// The layouts next to a chosen one, each the best with one axis or choice of
// another size: what that would cost, and why it is not chosen.

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

// Of a replica's step; 0 where nothing orders them.
int64_t NumListedPasses(const Plan& plan);

// Whether two layouts are the same but for their chunks a stage.
bool DifferInChunksOnly(Layout a, Layout b);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_NEIGHBOURS_H_
