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
  int32_t num_devices = 0;  // Remaining; the layout may leave some idle.
  // The plan with all nodes stays, since the remaining devices suffice for it.
  bool keeps_layout = true;
  Layout layout;
  bool plan_only = false;  // This and the next three are as in Plan.
  bool pipeline_outermost = false;
  double step_time_s = 0;
  double tokens_per_s = 0;
  double search_seconds = 0;  // Time of the search; 0 for a plan that stays.

  int32_t num_idle_devices() const { return num_devices - layout.num_ranks(); }
};

// Immutable after Create().
class PlanTemplates {
 public:
  // Plans `input` without 1, 2, ... `most_lost_nodes` of its nodes of
  // `devices_per_node`, which are all alike. `whole` is the plan of `input`.
  // The global batch, and with it the training, stays the same.
  //
  // The plan stays while its idle devices make up for the lost ones. Other
  // plans may leave remaining devices idle. Ends early, without an error, if
  // the remaining devices have no plan, even for the first lost node; but
  // errors of the profile are FindPlan()'s. Returns InvalidArgument for sizes
  // below one.
  static absl::StatusOr<PlanTemplates> Create(const SearchInput& input,
                                              const Plan& whole,
                                              const CostModel& cost,
                                              int32_t devices_per_node,
                                              int32_t most_lost_nodes);

  // Returns the plan with all nodes for 0; null if there is no plan for so
  // many.
  const PlanTemplate* Find(int32_t num_lost_nodes) const;

  // Says why there is no plan for one more lost node; OK if none was asked for.
  const absl::Status& end() const { return end_; }

  // Returns tokens/s over those with all nodes (planner/fleet/goodput.h), by
  // lost nodes. The first value is for one lost node.
  std::vector<double> ThroughputByNodesLost() const;

 private:
  std::vector<PlanTemplate> templates_;  // Indexed by lost nodes, from 0.
  absl::Status end_;
};

// Plans the rest of `input` without `num_lost_devices`. For a run the layout
// may leave an eighth of the others idle, or as many as it takes to have a
// layout. Returns FindPlan()'s errors.
absl::StatusOr<Plan> Replan(const SearchInput& input, int32_t num_lost_devices,
                            const CostModel& cost);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FLEET_PLAN_TEMPLATES_H_
