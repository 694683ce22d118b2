#include "planner/search/all_axes_plan.h"

#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "planner/job/executable.h"
#include "planner/lower/program_size.h"
#include "planner/search/all_axes_search.h"
#include "planner/search/copy_engine_choice.h"
#include "planner/search/instruction_finalists.h"
#include "planner/search/prediction.h"
#include "planner/search/variant_choice.h"

namespace millrace {
namespace {

// The closed form that chose said that it fits.
void WarnIfTooLarge(int64_t memory_limit, Plan* plan) {
  const int64_t need = plan->prediction.memory_bytes();
  if (need <= memory_limit) return;
  const int64_t more_than_said =
      need - plan->prediction.closed_form->memory.total();
  plan->warnings.push_back(absl::StrCat(
      "the Programs of the layout hold ", FormatBytes(need), ", ",
      FormatBytes(need - memory_limit),
      " more than a device has, though by the closed form it fits; set "
      "resources.memory_per_device to ",
      (memory_limit - more_than_said) / kMiB, " MiB for one that does"));
}

// What was chosen is now told exactly.
absl::Status TellByInstructions(const SearchInput& input, const CostModel& cost,
                                int64_t memory_limit, const Alternative& chosen,
                                std::optional<LoweredStep> lowered,
                                Plan* plan) {
  if (lowered.has_value() && lowered->layout == plan->layout) {
    plan->prediction = lowered->prediction;
    plan->timeline = std::move(lowered->timeline);
    TakePrograms(std::move(lowered->programs), plan);
  } else {
    RETURN_IF_ERROR(TakeVariant(input.job.model, plan->layout, cost,
                                /*is_pinned=*/true, plan));
  }
  RETURN_IF_ERROR(ChooseCopyEngines(input.job, cost, plan));
  plan->prediction.closed_form = chosen.prediction.closed_form;
  if (!std::exchange(plan->simulated, true)) {
    for (Alternative& alternative : plan->alternatives) {
      SayWhyItLost(chosen.by_passes.value_or(chosen.prediction), memory_limit,
                   kByClosedForm, &alternative);
    }
  }
  WarnIfTooLarge(memory_limit, plan);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> PlanAllAxes(const SearchInput& input,
                                 const CostModel& cost, int64_t memory_limit) {
  ASSIGN_OR_RETURN(PlannedChoice choice,
                   FindPlannedLayouts(input, cost, memory_limit));
  const ModelSpec& model = input.job.model;
  Plan plan;
  const Alternative& chosen = choice.best.front();
  plan.layout = chosen.layout;
  plan.prediction = chosen.prediction;
  plan.recompute_prices = std::move(choice.recompute_prices);
  plan.by_passes = chosen.by_passes;
  plan.pipeline_outermost = chosen.pipeline_outermost;
  plan.simulated = chosen.simulated;
  plan.listed_bytes = chosen.listed_bytes;
  // Orders of passes alone are no worker's either.
  plan.plan_only = plan.pipeline_outermost || !plan.listed_bytes.empty() ||
                   !CheckExecutable(model, plan.layout).ok();
  plan.num_idle_devices = input.num_devices - plan.layout.num_ranks();
  plan.alternatives.assign(std::make_move_iterator(choice.best.begin() + 1),
                           std::make_move_iterator(choice.best.end()));
  plan.layouts_considered = choice.layouts_considered;
  plan.optimality_gap = choice.optimality_gap;
  if (!input.lowers || !plan.listed_bytes.empty() ||
      !CanBeLowered(model, chosen, cost)) {
    return plan;
  }
  const absl::Status too_large = CheckProgramSize(model, plan.layout);
  if (!too_large.ok()) {
    plan.warnings.push_back(
        absl::StrCat("no run takes this plan: ", too_large.message()));
    return plan;
  }
  RETURN_IF_ERROR(TellByInstructions(input, cost, memory_limit, chosen,
                                     std::move(choice.lowered), &plan));
  return plan;
}

}  // namespace millrace
