#include "planner/explain/precision_gain.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/units.h"
#include "planner/job/layout_space.h"
#include "planner/layout/numeric_format.h"
#include "planner/search/prediction.h"

namespace millrace {

namespace {

Float8Gain GainOf(std::string setting, PlanningCase in_float8,
                  const Plan& chosen, const Planner& planner) {
  PinLayout(chosen.layout, &in_float8.job);
  const absl::StatusOr<Plan> plan = planner(in_float8);
  Float8Gain gain = {.setting = std::move(setting), .unknown = {}};
  if (!plan.ok()) {
    gain.unknown = std::string(plan.status().message());
    return gain;
  }
  gain.step_time_s = plan->prediction.step_time_s;
  // Snapshots use what the layout leaves free.
  gain.memory_bytes =
      plan->prediction.memory_bytes() - plan->prediction.staged_bytes;
  return gain;
}

std::string TextOf(const Plan& chosen, const Float8Gain& gain) {
  if (!gain.unknown.empty()) {
    return absl::StrCat("with ", gain.setting, " not known: ", gain.unknown);
  }
  const double saving = 1 - gain.step_time_s / chosen.prediction.step_time_s;
  return absl::StrFormat("%s a step with %s, %.1f %% %s, and %s a rank",
                         FormatStepTime(gain.step_time_s), gain.setting,
                         100 * std::abs(saving), saving >= 0 ? "less" : "more",
                         FormatBytes(gain.memory_bytes));
}

}  // namespace

std::vector<Float8Gain> FindFloat8Gains(const PlanningCase& planned,
                                        const Plan& chosen,
                                        const Planner& planner) {
  std::vector<Float8Gain> gains;
  const std::string& precision = planned.job.training.precision;
  if (planned.profile.device.fp8_flops_per_s <= 0 ||
      PrecisionOf(precision, Backend::kCuda) != Precision::kBfloat16) {
    return gains;
  }
  for (const PrecisionRecipe& recipe : PrecisionRecipes()) {
    if (precision == "bf16" && recipe.precision == Precision::kBfloat16 &&
        IsFloat8(recipe.gemm_format)) {
      PlanningCase in_float8 = planned;
      in_float8.job.training.precision = recipe.name;
      gains.push_back(GainOf(absl::StrCat("training.precision: ", recipe.name),
                             std::move(in_float8), chosen, planner));
    }
  }
  PlanningCase attends = planned;
  ModelSpec& model = attends.job.model;
  model.attention_format = AttentionFormat::kFloat8;
  if (model != planned.job.model && ValidateModel(model).ok()) {
    gains.push_back(
        GainOf("training.attention: fp8", std::move(attends), chosen, planner));
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
