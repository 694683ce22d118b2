#include "planner/fleet/plan_templates.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/job/layout_space.h"

namespace millrace {
namespace {

PlanTemplate TemplateOf(const Plan& plan, int32_t num_lost_nodes,
                        int32_t num_devices) {
  return {.num_lost_nodes = num_lost_nodes,
          .num_devices = num_devices,
          .layout = plan.layout,
          .plan_only = plan.plan_only,
          .pipeline_outermost = plan.pipeline_outermost,
          .step_time_s = plan.prediction.step_time_s,
          .tokens_per_s = plan.prediction.tokens_per_s,
          .search_seconds = plan.search_seconds};
}

// A layout that uses fewer than all devices is sometimes much faster, but
// nobody expects half of them to be idle: at most an eighth, or as many as it
// takes to have a layout whose replicas share the batch evenly.
int32_t LeastDevices(const JobSpec& job, int32_t num_devices) {
  const auto has_even_layout = [&](int32_t devices) {
    return absl::c_any_of(
        EnumerateLayouts(LayoutSpaceOf(job, devices)),
        [](const Layout& layout) { return !layout.is_uneven(); });
  };
  int32_t most = num_devices;
  while (most > 1 && !has_even_layout(most)) --most;
  return std::min(most, num_devices - num_devices / 8);
}

}  // namespace

absl::StatusOr<Plan> Replan(const SearchInput& input, int32_t num_lost_devices,
                            const CostModel& cost) {
  SearchInput left = input;
  left.num_devices -= num_lost_devices;
  if (left.num_devices < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot plan without ", num_lost_devices, " of ",
                     input.num_devices, " devices: none is left"));
  }
  if (!left.allows_plan_only) {
    left.least_devices = LeastDevices(left.job, left.num_devices);
  }
  return FindPlan(left, cost);
}

absl::StatusOr<PlanTemplates> PlanTemplates::Create(const SearchInput& input,
                                                    const Plan& whole,
                                                    const CostModel& cost,
                                                    int32_t devices_per_node,
                                                    int32_t most_lost_nodes) {
  if (devices_per_node < 1 || most_lost_nodes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("templates for ", most_lost_nodes, " lost nodes of ",
                     devices_per_node, " devices; both must be at least 1"));
  }
  PlanTemplates templates;
  templates.templates_.push_back(TemplateOf(whole, 0, input.num_devices));
  templates.templates_.front().search_seconds = 0;
  for (int32_t lost = 1; lost <= most_lost_nodes; ++lost) {
    const int64_t lost_devices = int64_t{lost} * devices_per_node;
    if (lost_devices >= input.num_devices) {
      templates.end_ = absl::InvalidArgumentError(absl::StrCat(
          "no device is left without ", lost, lost == 1 ? " node" : " nodes",
          " of ", devices_per_node));
      break;
    }
    const auto left = static_cast<int32_t>(input.num_devices - lost_devices);
    if (whole.layout.num_ranks() <= left) {
      PlanTemplate kept = templates.templates_.front();
      kept.num_lost_nodes = lost;
      kept.num_devices = left;
      templates.templates_.push_back(std::move(kept));
      continue;
    }
    const absl::StatusOr<Plan> plan =
        Replan(input, static_cast<int32_t>(lost_devices), cost);
    // If it does not fit these devices, it does not fit fewer.
    if (absl::IsInvalidArgument(plan.status())) {
      templates.end_ = plan.status();
      break;
    }
    if (!plan.ok()) return plan.status();
    templates.templates_.push_back(TemplateOf(*plan, lost, left));
    templates.templates_.back().keeps_layout = false;
  }
  return templates;
}

const PlanTemplate* PlanTemplates::Find(int32_t num_lost_nodes) const {
  const auto idx = static_cast<size_t>(num_lost_nodes);
  if (num_lost_nodes < 0 || idx >= templates_.size()) return nullptr;
  return &templates_[idx];
}

std::vector<double> PlanTemplates::ThroughputByNodesLost() const {
  std::vector<double> shares;
  for (size_t lost = 1; lost < templates_.size(); ++lost) {
    shares.push_back(templates_[lost].tokens_per_s /
                     templates_.front().tokens_per_s);
  }
  return shares;
}

}  // namespace millrace
