#include "planner/explain/precision_gain.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "planner/job/layout_space.h"
#include "planner/search/prediction.h"

namespace millrace {

std::optional<Float8Gain> FindFloat8Gain(const PlanningCase& planned,
                                         const Plan& chosen,
                                         const Planner& planner) {
  if (planned.job.training.precision != "bf16" ||
      planned.profile.device.fp8_flops_per_s <= 0) {
    return std::nullopt;
  }
  PlanningCase in_float8 = planned;
  in_float8.job.training.precision = "fp8";
  PinLayout(chosen.layout, &in_float8.job);
  const absl::StatusOr<Plan> plan = planner(in_float8);
  if (!plan.ok()) {
    return Float8Gain{.unknown = std::string(plan.status().message())};
  }
  return Float8Gain{.step_time_s = plan->prediction.step_time_s,
                    .memory_bytes = plan->prediction.memory_bytes(),
                    .unknown = {}};
}

std::string Float8GainText(const Plan& chosen, const Float8Gain& gain) {
  if (!gain.unknown.empty()) return absl::StrCat("not known: ", gain.unknown);
  const double saving = 1 - gain.step_time_s / chosen.prediction.step_time_s;
  return absl::StrFormat(
      "%s a step with training.precision: fp8, %.1f %% %s, and %s a rank",
      FormatStepTime(gain.step_time_s), 100 * std::abs(saving),
      saving >= 0 ? "less" : "more", FormatBytes(gain.memory_bytes));
}

}  // namespace millrace
