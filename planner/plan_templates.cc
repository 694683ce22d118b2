#include "planner/plan_templates.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/layout_space.h"

namespace millrace {

absl::StatusOr<Plan> Replan(const SearchInput& input, int32_t num_lost_devices,
                            const CostModel& cost) {
  SearchInput left = input;
  left.num_devices -= num_lost_devices;
  if (left.num_devices < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot plan without ", num_lost_devices, " of ",
                     input.num_devices, " devices: none is left"));
  }
  if (!left.all_axes) {
    // Workers use all devices of a run.
    const int32_t most = left.num_devices;
    while (left.num_devices > 1 &&
           !CheckLayouts(left.job, left.num_devices).ok()) {
      --left.num_devices;
    }
    ASSIGN_OR_RETURN(Plan plan, FindPlan(left, cost));
    plan.num_idle_devices = most - left.num_devices;
    return plan;
  }
  return FindPlan(left, cost);
}

absl::StatusOr<PlanTemplates> PlanTemplates::Create(const SearchInput& input,
                                                    const CostModel& cost,
                                                    int32_t devices_per_node,
                                                    int32_t most_lost_nodes) {
  if (devices_per_node < 1 || most_lost_nodes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("templates for ", most_lost_nodes, " lost nodes of ",
                     devices_per_node, " devices; both must be at least 1"));
  }
  PlanTemplates templates;
  for (int32_t lost = 1; lost <= most_lost_nodes; ++lost) {
    const int64_t lost_devices = int64_t{lost} * devices_per_node;
    if (lost_devices >= input.num_devices) break;
    const absl::StatusOr<Plan> plan =
        Replan(input, static_cast<int32_t>(lost_devices), cost);
    // What fewer devices cannot hold, still fewer cannot either.
    if (absl::IsInvalidArgument(plan.status())) break;
    if (!plan.ok()) return plan.status();
    templates.templates_.push_back(
        {.num_lost_nodes = lost,
         .num_devices = input.num_devices - static_cast<int32_t>(lost_devices),
         .layout = plan->layout,
         .step_time_s = plan->prediction.step_time_s});
  }
  return templates;
}

const PlanTemplate* PlanTemplates::Find(int32_t num_lost_nodes) const {
  const auto idx = static_cast<size_t>(num_lost_nodes) - 1;
  if (num_lost_nodes < 1 || idx >= templates_.size()) return nullptr;
  return &templates_[idx];
}

std::vector<double> PlanTemplates::ThroughputByNodesLost(
    double step_time_s) const {
  std::vector<double> shares;
  for (const PlanTemplate& plan : templates_) {
    shares.push_back(step_time_s / plan.step_time_s);
  }
  return shares;
}

}  // namespace millrace
