#include "planner/variant_choice.h"

#include <utility>

#include "base/status_macros.h"
#include "planner/program_prediction.h"

namespace millrace {

absl::Status TakeVariant(const ModelSpec& model, const Layout& variant,
                         const CostModel& cost, bool is_pinned, Plan* plan) {
  Timeline timeline;
  ASSIGN_OR_RETURN(const Prediction prediction,
                   PredictLayout(model, variant, cost, &timeline));
  if (is_pinned || prediction.step_time_s < plan->prediction.step_time_s) {
    plan->layout = variant;
    plan->prediction = prediction;
    plan->timeline = std::move(timeline);
  }
  return absl::OkStatus();
}

}  // namespace millrace
