#include "coordinator/metrics/run_records.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

using Value = std::optional<double>;

template <typename Field>
Value OfRewards(const StepRecord& record, const Field& field) {
  if (!record.rewards.has_value()) return std::nullopt;
  return std::invoke(field, *record.rewards);
}

const StepMetric kStepMetrics[] = {
    {"train/loss", "millrace_loss",
     "Mean loss of the step's global batch in nats per token, or per pair.",
     [](const StepRecord& record) { return Value(record.loss); }},
    {"train/gradient_norm", "millrace_gradient_norm",
     "Norm of all gradients before clipping.",
     [](const StepRecord& record) { return Value(record.gradient_norm); }},
    {"train/learning_rate", "millrace_learning_rate",
     "Learning rate of the step.",
     [](const StepRecord& record) { return Value(record.learning_rate); }},
    {"rewards/chosen", "millrace_chosen_reward",
     "Mean reward of the step's chosen answers.",
     [](const StepRecord& record) {
       return OfRewards(record, &RewardRecord::chosen);
     }},
    {"rewards/rejected", "millrace_rejected_reward",
     "Mean reward of the step's rejected answers.",
     [](const StepRecord& record) {
       return OfRewards(record, &RewardRecord::rejected);
     }},
    {"rewards/margin", "millrace_reward_margin",
     "Mean reward of chosen answers above that of rejected ones.",
     [](const StepRecord& record) {
       return OfRewards(record, &RewardRecord::margin);
     }},
    {"rewards/accuracy", "millrace_reward_accuracy",
     "Share of pairs whose chosen answer has the larger reward.",
     [](const StepRecord& record) {
       return OfRewards(record, &RewardRecord::accuracy);
     }},
    {"validation/loss", "millrace_validation_loss",
     "Mean loss of the held-out share of the data in nats per token.",
     [](const StepRecord& record) { return record.validation_loss; }},
    {"speed/tokens_per_second", "millrace_tokens_per_second",
     "Tokens that all devices together trained on a second.",
     [](const StepRecord& record) { return Value(TokensPerSecond(record)); }},
    {"speed/step_seconds", "millrace_step_seconds", "Seconds of the step.",
     [](const StepRecord& record) { return Value(record.step_time_s); }},
    {"speed/predicted_step_seconds", "millrace_predicted_step_seconds",
     "Seconds of a step by the plan.",
     [](const StepRecord& record) {
       return Value(record.predicted_step_time_s);
     }},
};

}  // namespace

double TokensPerSecond(const StepRecord& record) {
  return static_cast<double>(record.tokens) /
         std::max(record.step_time_s, 1e-9);
}

std::span<const StepMetric> StepMetrics() { return kStepMetrics; }

std::vector<std::pair<std::string, double>> TaggedValues(
    const StepRecord& record) {
  std::vector<std::pair<std::string, double>> values;
  for (const StepMetric& metric : StepMetrics()) {
    const std::optional<double> value = metric.value(record);
    if (value.has_value()) values.emplace_back(metric.tag, *value);
  }
  for (const auto& [name, loss] : record.evaluation) {
    values.emplace_back(absl::StrCat("evaluation/", name, "/loss"), loss);
    values.emplace_back(absl::StrCat("evaluation/", name, "/perplexity"),
                        std::exp(loss));
  }
  return values;
}

}  // namespace millrace
