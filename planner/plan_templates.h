// Plans made beforehand for a cluster that has lost nodes, so that a job knows
// at once how to go on with those that are left.

#ifndef MILLRACE_PLANNER_PLAN_TEMPLATES_H_
#define MILLRACE_PLANNER_PLAN_TEMPLATES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost.h"
#include "planner/layout.h"
#include "planner/search.h"

namespace millrace {

struct PlanTemplate {
  int32_t num_lost_nodes = 0;
  int32_t num_devices = 0;  // Left; the layout may leave some of them idle.
  Layout layout;
  double step_time_s = 0;
};

// Immutable once made.
class PlanTemplates {
 public:
  // Plans `input` without 1, 2 ... `most_lost_nodes` of its nodes of
  // `devices_per_node`; the global batch, and with it the training, stays the
  // same. Where no layout uses all devices that are left, the most that one
  // can. Ends early, without an error, where what is left has no plan, be it
  // for the first node; errors of the profile are FindPlan's. InvalidArgument
  // for sizes below one.
  static absl::StatusOr<PlanTemplates> Create(const SearchInput& input,
                                              const CostModel& cost,
                                              int32_t devices_per_node,
                                              int32_t most_lost_nodes);

  // Null if there is no plan for so many.
  const PlanTemplate* Find(int32_t num_lost_nodes) const;

  // By nodes lost, the first for one: of a step of `step_time_s` with all
  // nodes, over the template's (planner/goodput.h).
  std::vector<double> ThroughputByNodesLost(double step_time_s) const;

 private:
  std::vector<PlanTemplate> templates_;  // By nodes lost, from 1.
};

// Plans anew for what is left of `input` without `num_lost_devices`; FindPlan's
// errors. Where no layout uses all of them, the most that one can. A job that
// waits for it does without the simulation (SearchInput::simulates).
absl::StatusOr<Plan> Replan(const SearchInput& input, int32_t num_lost_devices,
                            const CostModel& cost);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PLAN_TEMPLATES_H_
