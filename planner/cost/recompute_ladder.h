// Prices the recompute of each op of an executable layer: the bytes that it
// saves and the seconds that it costs.

#ifndef MILLRACE_PLANNER_COST_RECOMPUTE_LADDER_H_
#define MILLRACE_PLANNER_COST_RECOMPUTE_LADDER_H_

#include <vector>

#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/layout/recompute.h"

namespace millrace {

// For each op of kRecomputeOps: the bytes that recomputing it saves and the
// seconds that it takes, in one layer and for one micro-batch of this layout.
// Workers must be able to execute the layout, and `cost` must have a price for
// it (CheckProfile).
std::vector<RecomputeCandidate> PriceRecompute(const ModelSpec& model,
                                               const Layout& layout,
                                               const CostModel& cost);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_RECOMPUTE_LADDER_H_
