#include "planner/search/plan_choice.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "planner/job/executable.h"
#include "planner/search/prediction.h"
#include "planner/search/program_prediction.h"

namespace millrace {
namespace {

// Layouts whose steps differ by less than this share are equally fast: then
// workers should be able to execute the choice.
constexpr double kRoundingOfChoice = 1e-9;

const Prediction& PredictionOf(const Finalist& finalist, PriceModel model) {
  switch (model) {
    case PriceModel::kInstructions:
      return *finalist.instructions;
    case PriceModel::kPasses:
      return *finalist.passes;
    case PriceModel::kClosedForm:
      break;
  }
  return finalist.closed_form;
}

// Whether `a` comes before `b`: simulated ones first, then the faster.
bool IsBefore(const Finalist& a, const Finalist& b) {
  if (a.finest().model != b.finest().model) {
    return a.finest().model > b.finest().model;
  }
  return a.finest().step_time_s < b.finest().step_time_s;
}

}  // namespace

bool IsListed(const Finalist& finalist) {
  return !finalist.listed_bytes.empty() ||
         finalist.layout.schedule == Schedule::kListScheduled;
}

PriceModel FinestCommonModel(const Finalist& a, const Finalist& b) {
  if (a.instructions.has_value() && b.instructions.has_value()) {
    return PriceModel::kInstructions;
  }
  return a.passes.has_value() && b.passes.has_value() ? PriceModel::kPasses
                                                      : PriceModel::kClosedForm;
}

std::optional<size_t> ChosenOf(const std::vector<Finalist>& finalists,
                               bool may_be_too_large, bool only_listed) {
  const Finalist* lowered = nullptr;
  const Finalist* other = nullptr;
  for (const Finalist& finalist : finalists) {
    if (!finalist.fits || (only_listed && !IsListed(finalist))) continue;
    if (finalist.instructions.has_value()) {
      if (lowered == nullptr || IsBefore(finalist, *lowered)) {
        lowered = &finalist;
      }
    } else if (!finalist.can_be_lowered ||
               (finalist.is_too_large && may_be_too_large)) {
      if (other == nullptr || IsBefore(finalist, *other)) other = &finalist;
    }
  }
  if (lowered == nullptr && other == nullptr) return std::nullopt;
  if (lowered != nullptr && other != nullptr) {
    const PriceModel model = FinestCommonModel(*lowered, *other);
    const double other_s = PredictionOf(*other, model).step_time_s;
    if (other_s * (1 + kRoundingOfChoice) >=
            PredictionOf(*lowered, model).step_time_s ||
        other_s >= lowered->instructions->step_time_s) {
      other = nullptr;
    }
  }
  return static_cast<size_t>((other != nullptr ? other : lowered) -
                             finalists.data());
}

Plan PlanOf(const LayoutSpace& space, const std::vector<Finalist>& finalists,
            size_t chosen_idx, int64_t memory_limit,
            std::optional<LoweredStep> lowered) {
  const Finalist& chosen = finalists[chosen_idx];
  Plan plan;
  plan.layout = chosen.layout;
  plan.pipeline_outermost = chosen.pipeline_outermost;
  plan.listed_bytes = chosen.listed_bytes;
  // Workers take no order of passes from `listed_bytes`.
  plan.plan_only = plan.pipeline_outermost || !plan.listed_bytes.empty() ||
                   !CheckExecutable(space.model, plan.layout).ok();
  plan.num_idle_devices = space.num_devices - plan.layout.num_ranks();
  plan.prediction = chosen.finest();
  if (chosen.instructions.has_value()) {
    plan.by_passes = chosen.passes;
    CHECK(lowered.has_value());
    plan.timeline = std::move(lowered->timeline);
    plan.programs = std::make_shared<const std::vector<Program>>(
        std::move(lowered->programs));
  }
  std::vector<std::pair<double, Alternative>> losers;  // By ratio of times.
  for (size_t i = 0; i < finalists.size(); ++i) {
    const Finalist& loser = finalists[i];
    if (i == chosen_idx || (loser.is_too_large && !chosen.is_too_large)) {
      continue;
    }
    const PriceModel model = FinestCommonModel(loser, chosen);
    Alternative alternative{.layout = loser.layout,
                            .pipeline_outermost = loser.pipeline_outermost,
                            .fits = loser.fits,
                            .listed_bytes = loser.listed_bytes,
                            .prediction = PredictionOf(loser, model)};
    const Prediction& like = PredictionOf(chosen, model);
    SayWhyItLost(like, memory_limit, plan.prediction.model, &alternative);
    const double step_time_s = alternative.prediction.step_time_s;
    double ratio = step_time_s / like.step_time_s;
    if (ratio < 1 && model != plan.prediction.model &&
        step_time_s >= plan.prediction.step_time_s) {
      absl::StrAppend(&alternative.reason, ", but the choice takes only ",
                      FormatStepTime(plan.prediction.step_time_s), " by ",
                      PriceModelName(plan.prediction.model));
      alternative.brief_reason = "slower than the choice as simulated";
      ratio = step_time_s / plan.prediction.step_time_s;
    }
    losers.emplace_back(ratio, std::move(alternative));
  }
  absl::c_stable_sort(losers, [](const auto& a, const auto& b) {
    if (a.second.fits != b.second.fits) return a.second.fits;
    return a.first < b.first;
  });
  for (auto& [ratio, alternative] : losers) {
    plan.alternatives.push_back(std::move(alternative));
  }
  return plan;
}

}  // namespace millrace
