// Plans made in advance for a cluster that has lost nodes, so that a job can go
// on at once with the remaining ones.

#ifndef MILLRACE_PLANNER_FLEET_PLAN_TEMPLATES_H_
#define MILLRACE_PLANNER_FLEET_PLAN_TEMPLATES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/search/search.h"

namespace millrace {

struct PlanTemplate {
  int32_t num_lost_nodes = 0;
  int32_t num_devices = 0;  // Left; the layout may leave some of them idle.
  // The plan with all nodes holds on: the devices left are enough for it.
  bool keeps_layout = true;
  Layout layout;
  bool plan_only = false;  // As in Plan, and the next three.
  bool pipeline_outermost = false;
  double step_time_s = 0;
  double tokens_per_s = 0;
  double search_seconds = 0;  // That finding it took; 0 for a plan that holds.

  int32_t num_idle_devices() const { return num_devices - layout.num_ranks(); }
};

// Immutable once made.
class PlanTemplates {
 public:
  // Plans `input`, of which `whole` is the plan, without 1, 2 ...
  // `most_lost_nodes` of its nodes of `devices_per_node`, which are alike. The
  // global batch, and with it the training, stays the same. The plan holds
  // while the devices that it leaves idle make up for the lost ones. Where no
  // layout uses all devices that are left, the most that one can. Ends early,
  // without an error, where what is left has no plan, be it for the first node;
  // errors of the profile are FindPlan's. InvalidArgument for sizes below one.
  static absl::StatusOr<PlanTemplates> Create(const SearchInput& input,
                                              const Plan& whole,
                                              const CostModel& cost,
                                              int32_t devices_per_node,
                                              int32_t most_lost_nodes);

  // For 0 the plan with all nodes. Null if there is no plan for so many.
  const PlanTemplate* Find(int32_t num_lost_nodes) const;

  // Why there is none for a node more; OK where none was asked for.
  const absl::Status& end() const { return end_; }

  // By nodes lost, the first for one: tokens/s over those with all nodes
  // (planner/fleet/goodput.h).
  std::vector<double> ThroughputByNodesLost() const;

 private:
  std::vector<PlanTemplate> templates_;  // By nodes lost, from 0.
  absl::Status end_;
};

// Plans anew for what is left of `input` without `num_lost_devices`; FindPlan's
// errors. Where no layout uses all of them, the most that one can. A job that
// waits for it does without the simulation (SearchInput::simulates).
absl::StatusOr<Plan> Replan(const SearchInput& input, int32_t num_lost_devices,
                            const CostModel& cost);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FLEET_PLAN_TEMPLATES_H_
