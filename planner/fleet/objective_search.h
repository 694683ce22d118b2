// Finds the plan that serves the job's goodput.objective best: the shortest
// step, the most tokens over weeks with failures, or the cheapest tokens. The
// objective decides how many devices train and how many are spares.

#ifndef MILLRACE_PLANNER_FLEET_OBJECTIVE_SEARCH_H_
#define MILLRACE_PLANNER_FLEET_OBJECTIVE_SEARCH_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/op_cost.h"
#include "planner/fleet/goodput.h"
#include "planner/search/search.h"

namespace millrace {

// A plan's figures as goodput needs them. Whole nodes that its layout leaves
// idle are spares; without any, as many are supposed as GoodputInput's -1
// means. A checkpoint holds fp32 weights and both moments.
GoodputInput GoodputInputOf(const Plan& plan, int32_t devices_per_node);

struct ObjectivePlan {
  Plan plan;  // num_idle_devices counts those of `input` that do not train.
  // The number of devices that FindPlan() planned for: all of `input`, or fewer
  // for the objective.
  int32_t num_devices = 0;
  // Nothing where the job gives neither failures nor a price.
  std::optional<GoodputReport> goodput;
};

// step_time: FindPlan. goodput: FindPlan for all nodes, and for all but as many
// as are spares enough with probability 0.5, 0.9, 0.99 and 0.999; that which
// yields most, where each may go on as one of the smaller when spares run out.
// cost: FindPlan for all nodes, half of them, a quarter ...; that which is
// cheapest a token, its spares beside it; the smaller of equals. Numbers of
// devices that no layout can use are passed over.
//
// `devices_per_node` is at least 1. Errors are those of FindPlan for all
// devices, if it finds no plan for any number.
absl::StatusOr<ObjectivePlan> FindPlanForObjective(const SearchInput& input,
                                                   const CostModel& cost,
                                                   int32_t devices_per_node);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FLEET_OBJECTIVE_SEARCH_H_
