#include "coordinator/cli/plan_case.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/cost/op_cost.h"
#include "planner/explain/explain_neighbours.h"
#include "planner/fleet/goodput.h"
#include "planner/fleet/plan_templates.h"
#include "planner/job/layout_space.h"
#include "planner/search/search_budget.h"

namespace millrace {
namespace {

// Adds to the plan's goodput what going on without some nodes yields.
absl::StatusOr<GoodputReport> WithFewerNodes(const PlanningCase& planned,
                                             const ObjectivePlan& chosen,
                                             const CostModel& cost) {
  const int32_t devices_per_node = planned.profile.ranks_per_host;
  SearchInput training = SearchInputOf(planned);
  training.num_devices = chosen.plan.layout.num_ranks();
  const int32_t num_nodes = training.num_devices / devices_per_node;
  if (num_nodes < 2) return *chosen.goodput;
  ASSIGN_OR_RETURN(const PlanTemplates templates,
                   PlanTemplates::Create(
                       training, chosen.plan, cost, devices_per_node,
                       std::min(kSearchBudget.most_lost_nodes, num_nodes - 1)));
  GoodputInput figures = GoodputInputOf(chosen.plan, devices_per_node);
  figures.num_spare_nodes = chosen.goodput->num_spare_nodes;
  figures.throughput_by_nodes_lost = templates.ThroughputByNodesLost();
  return PredictGoodput(planned.job.goodput, figures);
}

}  // namespace

DevicesFrom DevicesFromOf(const CaseOptions& options, const JobSpec& job) {
  if (!options.devices.empty()) return DevicesFrom::kOption;
  const bool is_named = !options.profile_name.empty() || job.profile != "auto";
  return is_named && job.resources.devices_per_agent.has_value()
             ? DevicesFrom::kJob
             : DevicesFrom::kProfile;
}

std::string DevicesFromText(DevicesFrom from, int32_t num_devices) {
  if (from == DevicesFrom::kOption) return "";
  return absl::StrCat(
      num_devices, num_devices == 1 ? " device" : " devices",
      from == DevicesFrom::kJob
          ? ", as one agent of the job has (resources.devices_per_agent)"
          : ", as the profile was measured");
}

absl::StatusOr<PlanningCase> FindCase(const CaseOptions& options,
                                      const JobSpec& job, const Here& here) {
  PlanningCase planned{.job = job, .allows_plan_only = options.plan_only};
  int32_t num_devices = 0;
  if (!options.devices.empty() &&
      (!absl::SimpleAtoi(options.devices, &num_devices) || num_devices < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--devices ", options.devices,
                     ": expected a number of devices, at least 1, as 64"));
  }
  absl::StatusOr<HardwareProfile> profile =
      FindProfileFor(options.profile_name, num_devices, job, here);
  // A job that cannot work needs no profile measured to be told so.
  if (absl::IsNotFound(profile.status()) && num_devices > 0) {
    RETURN_IF_ERROR(CheckLayouts(job, num_devices));
  }
  ASSIGN_OR_RETURN(planned.profile, std::move(profile));
  if (num_devices == 0 && planned.profile.gemms.empty() &&
      planned.profile.device.is_given()) {
    return absl::InvalidArgumentError(
        absl::StrCat("hardware profile '", planned.profile.name,
                     "' is from data sheets, which do not say how many devices "
                     "there are; give --devices"));
  }
  switch (DevicesFromOf(options, job)) {
    case DevicesFrom::kOption:
      planned.num_devices = num_devices;
      break;
    case DevicesFrom::kJob:
      planned.num_devices = *job.resources.devices_per_agent;
      break;
    case DevicesFrom::kProfile:
      planned.num_devices = planned.profile.provenance.num_ranks;
      break;
  }
  return planned;
}

SearchInput SearchInputOf(const PlanningCase& planned) {
  return {.job = planned.job,
          .num_devices = planned.num_devices,
          .allows_plan_only =
              planned.allows_plan_only ||
              IsPlanOnPaper(planned.job, planned.num_devices, planned.profile)};
}

absl::StatusOr<Plan> PlanCase(const PlanningCase& planned) {
  ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(planned.profile));
  return FindPlan(SearchInputOf(planned), cost);
}

absl::StatusOr<ObjectivePlan> PlanForObjective(const PlanningCase& planned) {
  ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(planned.profile));
  const int32_t devices_per_node = planned.profile.ranks_per_host;
  ASSIGN_OR_RETURN(
      ObjectivePlan chosen,
      FindPlanForObjective(SearchInputOf(planned), cost, devices_per_node));
  if (chosen.goodput.has_value() && chosen.goodput->considers_failures) {
    ASSIGN_OR_RETURN(chosen.goodput, WithFewerNodes(planned, chosen, cost));
  }
  return chosen;
}

absl::StatusOr<bool> AddOtherChoices(const PlanningCase& planned, Plan* plan) {
  // The search lists many more of the layouts that workers can execute.
  if (!SearchInputOf(planned).allows_plan_only) return true;
  const bool is_listed =
      planned.job.layout.schedule == ScheduleName(Schedule::kListScheduled);
  if (plan->layouts_considered > kSearchBudget.most_priced_for_neighbours ||
      (is_listed &&
       NumListedPasses(*plan) > kSearchBudget.most_listed_for_neighbours)) {
    return false;
  }
  const Planner by_passes =
      [](const PlanningCase& turned) -> absl::StatusOr<Plan> {
    SearchInput input = SearchInputOf(turned);
    // The others of the table are by passes too, and a step of instructions
    // takes seconds where there are many.
    input.lowers = false;
    ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(turned.profile));
    return FindPlan(input, cost);
  };
  RETURN_IF_ERROR(AddNeighbours(planned, by_passes, plan));
  return true;
}

}  // namespace millrace
