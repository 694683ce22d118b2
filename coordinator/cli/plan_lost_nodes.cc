#include "coordinator/cli/plan_lost_nodes.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/cli/plan_case.h"
#include "planner/cost/op_cost.h"
#include "planner/fleet/plan_templates.h"

namespace millrace {

absl::StatusOr<LostNodesAnswer> AnswerLostNodes(const PlanningCase& planned,
                                                const Plan& plan,
                                                int32_t most_lost_nodes) {
  const int32_t devices_per_node = planned.profile.ranks_per_host;
  SearchInput input = SearchInputOf(planned);
  // An objective may plan for fewer and keep the others spare.
  input.num_devices = plan.layout.num_ranks() + plan.num_idle_devices;
  if (input.num_devices <= devices_per_node) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--lost-nodes: the ", input.num_devices,
        " devices are one node, of hardware profile '", planned.profile.name,
        "' with ", devices_per_node,
        " a node, so none is left without it; give more --devices"));
  }
  ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(planned.profile));
  ASSIGN_OR_RETURN(const PlanTemplates templates,
                   PlanTemplates::Create(input, plan, cost, devices_per_node,
                                         most_lost_nodes));
  LostNodesAnswer answer{.devices_per_node = devices_per_node,
                         .rows = {},
                         .end = std::string(templates.end().message())};
  input.simulates = false;
  for (int32_t lost = 0; lost <= most_lost_nodes; ++lost) {
    const double asked_s = MonotonicSeconds();
    const PlanTemplate* found = templates.Find(lost);
    const double found_s = MonotonicSeconds();
    if (found == nullptr) break;
    LostNodesRow row{.plan = *found, .look_up_s = found_s - asked_s};
    if (!found->keeps_layout) {
      const absl::StatusOr<Plan> anew =
          Replan(input, lost * devices_per_node, cost);
      RETURN_IF_ERROR(anew.status());
      row.anew_s = MonotonicSeconds() - found_s;
    }
    answer.rows.push_back(row);
  }
  return answer;
}

}  // namespace millrace
