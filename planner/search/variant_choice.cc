#include "planner/search/variant_choice.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/search/program_prediction.h"
#include "planner/search/short_step.h"

namespace millrace {

void TakePrograms(std::vector<Program> programs, Plan* plan) {
  plan->program_hashes = HashesOf(programs);
  plan->programs =
      std::make_shared<const std::vector<Program>>(std::move(programs));
}

absl::Status TakeVariant(const ModelSpec& model, const Layout& variant,
                         const CostModel& cost, bool is_pinned, Plan* plan) {
  if (!is_pinned) {
    // Where few micro-batches tell of both, both are held to the same scale,
    // and only a variant that is faster is lowered in full.
    ASSIGN_OR_RETURN(const std::optional<ShortStep> of_variant,
                     PredictFromFewMicrobatches(model, variant, cost));
    if (of_variant.has_value()) {
      if (of_variant->IsSlowerThan(plan->prediction.step_time_s)) {
        return absl::OkStatus();
      }
      ASSIGN_OR_RETURN(const std::optional<ShortStep> of_plan,
                       PredictFromFewMicrobatches(model, plan->layout, cost));
      const double plan_s = of_plan.has_value()
                                ? of_plan->prediction.step_time_s
                                : plan->prediction.step_time_s;
      if (of_variant->prediction.step_time_s >= plan_s) return absl::OkStatus();
    }
  }
  Timeline timeline;
  std::vector<Program> programs;
  ASSIGN_OR_RETURN(const Prediction prediction,
                   PredictLayout(model, variant, cost, &timeline, &programs));
  if (is_pinned || prediction.step_time_s < plan->prediction.step_time_s) {
    plan->layout = variant;
    plan->prediction = prediction;
    plan->timeline = std::move(timeline);
    TakePrograms(std::move(programs), plan);
  }
  return absl::OkStatus();
}

}  // namespace millrace
