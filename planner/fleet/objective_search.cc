#include "planner/fleet/objective_search.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr double kSpareConfidences[] = {0.5, 0.9, 0.99, 0.999};

double CheckpointBytes(const Plan& plan) {
  const auto kept = static_cast<double>(plan.prediction.optimizer_bytes);
  // An fp32 layout has no master weights, so its weights are saved instead.
  return RecipeOf(plan.layout).has_masters() ? kept : 1.5 * kept;
}

// Returns the numbers of devices to plan for, the largest first.
std::vector<int32_t> DeviceCounts(const SearchInput& input,
                                  int32_t devices_per_node) {
  const GoodputSpec& spec = input.job.goodput;
  std::vector<int32_t> counts = {input.num_devices};
  if (spec.objective == "cost") {
    for (int32_t count = input.num_devices / 2; count >= 1; count /= 2) {
      counts.push_back(count);
    }
  } else if (spec.objective == "goodput") {
    const double absent = MeanAbsentNodes(spec, input.num_devices);
    for (const double confidence : kSpareConfidences) {
      const int64_t spare_devices =
          int64_t{SparesFor(absent, confidence)} * devices_per_node;
      if (spare_devices >= input.num_devices) break;
      const auto count =
          input.num_devices - static_cast<int32_t>(spare_devices);
      if (count != counts.back()) counts.push_back(count);
    }
  }
  return counts;
}

// Returns the throughput with 1, 2, ... nodes fewer than `plan` trains on, over
// its own, as the best of `plans` that fits gives it. Ends with the last number
// that has a plan.
std::vector<double> ThroughputOnFewer(const Plan& plan,
                                      const std::vector<Plan>& plans,
                                      int32_t devices_per_node) {
  std::vector<double> shares;
  for (int32_t devices = plan.layout.num_ranks() - devices_per_node;
       devices > 0; devices -= devices_per_node) {
    double most = 0;
    for (const Plan& other : plans) {
      if (other.layout.num_ranks() > devices) continue;
      most = std::max(
          most, other.prediction.tokens_per_s / plan.prediction.tokens_per_s);
    }
    if (most == 0) break;
    shares.push_back(most);
  }
  return shares;
}

}  // namespace

GoodputInput GoodputInputOf(const Plan& plan, int32_t devices_per_node) {
  const Prediction& prediction = plan.prediction;
  const int32_t num_idle_nodes = plan.num_idle_devices / devices_per_node;
  return {.step_time_s = prediction.step_time_s,
          .tokens_per_step = prediction.tokens_per_s * prediction.step_time_s,
          .num_devices = plan.layout.num_ranks(),
          .devices_per_node = devices_per_node,
          .checkpoint_bytes_per_device = CheckpointBytes(plan),
          .num_spare_nodes = num_idle_nodes > 0 ? num_idle_nodes : -1,
          .throughput_by_nodes_lost = {}};
}

absl::StatusOr<ObjectivePlan> FindPlanForObjective(const SearchInput& input,
                                                   const CostModel& cost,
                                                   int32_t devices_per_node) {
  const GoodputSpec& spec = input.job.goodput;
  std::vector<Plan> plans;
  std::vector<int32_t> counts;  // Devices of each plan.
  absl::Status first_error;
  for (const int32_t count : DeviceCounts(input, devices_per_node)) {
    SearchInput part = input;
    part.num_devices = count;
    absl::StatusOr<Plan> plan = FindPlan(part, cost);
    if (!plan.ok()) {
      first_error.Update(plan.status());
      // Fewer devices do not help if the profile does not fit. And where
      // devices may idle, a number without a plan has none with fewer devices.
      if (!absl::IsInvalidArgument(plan.status())) return first_error;
      if (input.allows_plan_only) break;
      continue;
    }
    plan->num_idle_devices += input.num_devices - count;
    plans.push_back(*std::move(plan));
    counts.push_back(count);
  }
  if (plans.empty()) return first_error;

  const Plan* best = nullptr;
  GoodputInput best_figures;
  double best_objective = 0;
  for (const Plan& plan : plans) {
    GoodputInput figures = GoodputInputOf(plan, devices_per_node);
    if (spec.objective == "cost") {
      // Unused devices need not be paid.
      figures.num_spare_nodes = -1;
    } else if (spec.objective == "goodput") {
      // All devices are paid; those that do not train are spares.
      figures.num_spare_nodes = plan.num_idle_devices / devices_per_node;
      figures.throughput_by_nodes_lost =
          ThroughputOnFewer(plan, plans, devices_per_node);
    }
    const double objective = ObjectiveOf(spec, figures);
    if (best != nullptr && objective > best_objective) continue;
    best = &plan;
    best_figures = std::move(figures);
    best_objective = objective;
  }
  ObjectivePlan chosen{.plan = *best,
                       .num_devices = counts[best - plans.data()],
                       .goodput = std::nullopt};
  if (spec.mean_time_between_failures_hours > 0 ||
      spec.price_per_device_hour > 0) {
    chosen.goodput = PredictGoodput(spec, best_figures);
  }
  return chosen;
}

}  // namespace millrace
