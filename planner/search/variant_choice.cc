#include "planner/search/variant_choice.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/search/program_prediction.h"
#include "planner/search/short_step.h"

namespace millrace {

absl::Status TakeVariant(const ModelSpec& model, const Layout& variant,
                         const CostModel& cost, bool is_pinned, Plan* plan) {
  if (!is_pinned) {
    ASSIGN_OR_RETURN(const std::optional<ShortStep> shorter,
                     PredictFromFewMicrobatches(model, variant, cost));
    if (shorter.has_value() &&
        shorter->IsSlowerThan(plan->prediction.step_time_s)) {
      return absl::OkStatus();
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
    plan->program_hashes = HashesOf(programs);
  }
  return absl::OkStatus();
}

}  // namespace millrace
