// Finds the best plan for the job's goodput.objective: the shortest step, the
// most tokens over weeks with failures, or the cheapest tokens. The objective
// decides how many devices train and how many are spares.

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

// Returns a plan's figures as goodput needs them. Whole nodes that its layout
// leaves idle are spares; if there are none, GoodputInput's -1 decides. A
// checkpoint holds fp32 weights and both moments.
GoodputInput GoodputInputOf(const Plan& plan, int32_t devices_per_node);

struct ObjectivePlan {
  // Its num_idle_devices counts the devices of `input` that do not train.
  Plan plan;
  // The number of devices that FindPlan() planned for. The objective may choose
  // fewer than `input` has.
  int32_t num_devices = 0;
  // Absent if the job gives neither failures nor a price.
  std::optional<GoodputReport> goodput;
};

// Plans with FindPlan() for several numbers of devices and takes the best.
//
// - step_time: all devices.
// - goodput: all nodes, and all but as many as suffice as spares with
//   probability 0.5, 0.9, 0.99 and 0.999. The plan with the highest yield wins;
//   it may go on as one of the smaller plans when spares run out.
// - cost: all nodes, half of them, a quarter, and so on, each with its spares.
//   The plan with the cheapest token wins, of equals the smaller.
//
// Numbers of devices that no layout can use are skipped. `devices_per_node` is
// at least 1. If there is no plan for any number, returns FindPlan()'s error
// for all devices.
absl::StatusOr<ObjectivePlan> FindPlanForObjective(const SearchInput& input,
                                                   const CostModel& cost,
                                                   int32_t devices_per_node);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FLEET_OBJECTIVE_SEARCH_H_
