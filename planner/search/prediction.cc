#include "planner/search/prediction.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/units.h"
#include "planner/profile/prediction_interval.h"

namespace millrace {
namespace {

// Below this share of the step, layouts are as fast as each other.
constexpr double kEquallyFast = 5e-4;

// "1.7 %" for a ratio of 1.017, "1.50x" for one of 1.5.
std::string MoreText(double ratio) {
  return ratio < 1.1 ? absl::StrFormat("%.1f %%", 100 * (ratio - 1))
                     : absl::StrFormat("%.2fx", ratio);
}

// A part of the step that makes a layout slower.
struct Cause {
  std::string text;   // "exposed communication 20 % of the step".
  std::string brief;  // "communication 20 %".
};

// The part of the step that grew by the most seconds from `chosen` to `loser`.
Cause MainCause(const Prediction& loser, const Prediction& chosen) {
  const auto seconds = [](const Prediction& p, double share) {
    return p.step_time_s * share;
  };
  const auto compute_share = [](const Prediction& p) {
    return 1 - p.bubble_fraction - p.exposed_communication_fraction;
  };
  const auto share_of_step = [](absl::string_view part, double share) {
    const std::string text = absl::StrFormat("%s %.0f %%", part, 100 * share);
    return Cause{.text = absl::StrCat(text, " of the step"),
                 .brief = std::string(absl::StripPrefix(text, "exposed "))};
  };
  const double bubble = seconds(loser, loser.bubble_fraction) -
                        seconds(chosen, chosen.bubble_fraction);
  const double communication =
      seconds(loser, loser.exposed_communication_fraction) -
      seconds(chosen, chosen.exposed_communication_fraction);
  const double compute = seconds(loser, compute_share(loser)) -
                         seconds(chosen, compute_share(chosen));
  if (bubble >= communication && bubble >= compute) {
    return share_of_step("bubble", loser.bubble_fraction);
  }
  if (communication >= compute) {
    return share_of_step("exposed communication",
                         loser.exposed_communication_fraction);
  }
  const std::string more = MoreText(seconds(loser, compute_share(loser)) /
                                    seconds(chosen, compute_share(chosen)));
  return {
      .text = absl::StrCat("computing takes ", more, " longer"),
      .brief = absl::StrCat("compute ", more.back() == 'x' ? "" : "+", more)};
}

void FillShares(const StepTime& time, Prediction* prediction) {
  const double step_time_s = time.step_time_s();
  prediction->bubble_fraction = time.bubble_s / step_time_s;
  prediction->exposed_communication_fraction =
      (time.exposed_tensor_s + time.exposed_context_s + time.exposed_expert_s +
       time.exposed_data_s + time.transfer_s) /
      step_time_s;
  prediction->recompute_fraction = time.recompute_s / step_time_s;
}

}  // namespace

const char* PriceModelName(PriceModel model) {
  switch (model) {
    case PriceModel::kClosedForm:
      return "the closed form";
    case PriceModel::kPasses:
      return "passes";
    case PriceModel::kInstructions:
      return "instructions";
  }
  return "";
}

std::optional<Prediction> PredictionBy(PriceModel model, const Plan& plan) {
  if (plan.prediction.model == model) return plan.prediction;
  if (model == PriceModel::kPasses) return plan.by_passes;
  if (model == PriceModel::kClosedForm &&
      plan.prediction.closed_form.has_value()) {
    return ByClosedForm(plan.prediction);
  }
  return std::nullopt;
}

void FillTime(const ModelSpec& model, const Layout& layout,
              const CostModel& cost, PriceModel price_model, double step_time_s,
              Prediction* prediction) {
  prediction->model = price_model;
  prediction->step_time_s = step_time_s;
  prediction->tokens_per_s = static_cast<double>(layout.global_batch()) *
                             static_cast<double>(model.sequence_length) /
                             step_time_s;
  const StepError error = ErrorFor(model, cost.profile());
  const StepTimeInterval interval =
      IntervalOf(step_time_s, error,
                 NoiseEffectOf(NoiseFor(cost.profile()), error, layout));
  prediction->step_time_low_s = interval.low_s;
  prediction->step_time_high_s = interval.high_s;
  const TokenFlops flops = CountTokenFlops(model, layout.document_length);
  const double tokens_per_flop =
      prediction->tokens_per_s / layout.num_ranks() / cost.PeakFlopsPerSecond();
  prediction->mfu_full =
      tokens_per_flop * (flops.linear + flops.attention_full);
  prediction->mfu_causal =
      tokens_per_flop * (flops.linear + flops.attention_causal);
}

Prediction PredictionOf(const ModelSpec& model, const Layout& layout,
                        const CostModel& cost, const StepPrediction& step) {
  Prediction prediction;
  FillTime(model, layout, cost, PriceModel::kClosedForm,
           step.time.step_time_s(), &prediction);
  FillShares(step.time, &prediction);
  const StepMemory& memory = step.memory;
  prediction.parameter_bytes = memory.parameters;
  prediction.gradient_bytes = memory.gradients;
  prediction.optimizer_bytes = memory.optimizer;
  prediction.persistent_bytes =
      memory.parameters + memory.gradients + memory.optimizer;
  prediction.step_bytes = memory.activations + memory.working;
  prediction.overhead_bytes = memory.overhead;
  prediction.closed_form = step;
  return prediction;
}

Prediction ByClosedForm(const Prediction& prediction) {
  Prediction by_closed_form = prediction;
  const StepTime& time = prediction.closed_form->time;
  by_closed_form.model = PriceModel::kClosedForm;
  // The interval, tokens a second and MFU change as the step time does.
  const double ratio = time.step_time_s() / prediction.step_time_s;
  by_closed_form.step_time_s = time.step_time_s();
  by_closed_form.tokens_per_s /= ratio;
  by_closed_form.mfu_full /= ratio;
  by_closed_form.mfu_causal /= ratio;
  for (auto* bound :
       {&by_closed_form.step_time_low_s, &by_closed_form.step_time_high_s}) {
    if (bound->has_value()) **bound *= ratio;
  }
  FillShares(time, &by_closed_form);
  return by_closed_form;
}

void SayWhyItLost(const Prediction& chosen, int64_t memory_limit,
                  PriceModel plan_model, Alternative* loser) {
  const PriceModel model = loser->prediction.model;
  CHECK(chosen.model == model);
  if (!loser->fits) {
    const int64_t need = loser->prediction.memory_bytes();
    const std::string missing = FormatBytes(need - memory_limit);
    loser->reason = absl::StrCat("needs ", FormatBytes(need), ", ", missing,
                                 " more than the device has");
    loser->brief_reason = absl::StrCat("does not fit: ", missing, " too much");
    return;
  }
  const double ratio = loser->prediction.step_time_s / chosen.step_time_s;
  const std::string speed = SpeedText(ratio);
  // Among equally fast layouts the simpler is chosen.
  const bool names_model = model != plan_model;
  if (!names_model && ratio == 1) {
    loser->reason = loser->brief_reason = "as fast, but not as simple";
    return;
  }
  Cause cause;
  if (ratio > 1 + kEquallyFast) {
    cause = MainCause(loser->prediction, chosen);
    cause.text.insert(0, ": ");
    cause.brief.insert(0, ": ");
  }
  const std::string by_model =
      names_model ? absl::StrCat(" by ", PriceModelName(model), " (choice ",
                                 FormatStepTime(chosen.step_time_s), ")")
                  : "";
  loser->reason = absl::StrCat(speed, by_model, cause.text);
  loser->brief_reason = absl::StrCat(speed, cause.brief);
}

std::string SpeedText(double ratio) {
  if (std::abs(ratio - 1) < kEquallyFast) return "as fast";
  if (ratio > 1) return absl::StrCat(MoreText(ratio), " slower");
  return absl::StrFormat("%.1f %% faster", 100 * (1 - ratio));
}

std::string FormatStepTime(double seconds) {
  constexpr double kMinute = 60;
  return seconds >= kMinute && seconds < 10 * kMinute
             ? absl::StrFormat("%.1f s", seconds)
             : FormatSeconds(seconds);
}

}  // namespace millrace
