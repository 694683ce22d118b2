// Which sets of ops a model's Programs had best compute again, by the times
// that a profile has of the ops and the tensors that their graphs keep.

#ifndef MILLRACE_PLANNER_COST_RECOMPUTE_LADDER_H_
#define MILLRACE_PLANNER_COST_RECOMPUTE_LADDER_H_

#include <vector>

#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/layout/recompute.h"

namespace millrace {

// What each op of kRecomputeOps saves and takes in one layer, for one
// micro-batch of this layout. The layout must be one that workers can execute
// and `cost` have a price for (CheckProfile).
std::vector<RecomputeCandidate> PriceRecompute(const ModelSpec& model,
                                               const Layout& layout,
                                               const CostModel& cost);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_RECOMPUTE_LADDER_H_
