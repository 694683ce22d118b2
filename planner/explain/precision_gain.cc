#include "planner/explain/precision_gain.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/units.h"
#include "planner/job/layout_space.h"
#include "planner/layout/numeric_format.h"
#include "planner/search/prediction.h"

namespace millrace {

namespace {

Float8Gain GainOf(const char* precision, const PlanningCase& planned,
                  const Plan& chosen, const Planner& planner) {
  PlanningCase in_float8 = planned;
  in_float8.job.training.precision = precision;
  PinLayout(chosen.layout, &in_float8.job);
  const absl::StatusOr<Plan> plan = planner(in_float8);
  Float8Gain gain = {.precision = precision, .unknown = {}};
  if (!plan.ok()) {
    gain.unknown = std::string(plan.status().message());
    return gain;
  }
  gain.step_time_s = plan->prediction.step_time_s;
  gain.memory_bytes = plan->prediction.memory_bytes();
  return gain;
}

std::string TextOf(const Plan& chosen, const Float8Gain& gain) {
  if (!gain.unknown.empty()) {
    return absl::StrCat("with training.precision: ", gain.precision,
                        " not known: ", gain.unknown);
  }
  const double saving = 1 - gain.step_time_s / chosen.prediction.step_time_s;
  return absl::StrFormat(
      "%s a step with training.precision: %s, %.1f %% %s, and %s a rank",
      FormatStepTime(gain.step_time_s), gain.precision, 100 * std::abs(saving),
      saving >= 0 ? "less" : "more", FormatBytes(gain.memory_bytes));
}

}  // namespace

std::vector<Float8Gain> FindFloat8Gains(const PlanningCase& planned,
                                        const Plan& chosen,
                                        const Planner& planner) {
  std::vector<Float8Gain> gains;
  if (planned.job.training.precision != "bf16" ||
      planned.profile.device.fp8_flops_per_s <= 0) {
    return gains;
  }
  for (const PrecisionRecipe& recipe : PrecisionRecipes()) {
    if (recipe.precision == Precision::kBfloat16 &&
        IsFloat8(recipe.gemm_format)) {
      gains.push_back(GainOf(recipe.name, planned, chosen, planner));
    }
  }
  return gains;
}

std::string Float8GainText(const Plan& chosen,
                           const std::vector<Float8Gain>& gains) {
  std::vector<std::string> texts;
  for (const Float8Gain& gain : gains) texts.push_back(TextOf(chosen, gain));
  return absl::StrJoin(texts, "; ");
}

}  // namespace millrace
