#include "planner/search/closed_form_finalists.h"

#include <algorithm>
#include <limits>

#include "absl/algorithm/container.h"
#include "planner/job/executable.h"
#include "planner/search/closed_form_evaluator.h"
#include "planner/search/prediction.h"
#include "planner/search/program_prediction.h"
#include "planner/search/search_budget.h"

namespace millrace {

ClosedFormFinalists::ClosedFormFinalists(const SearchScope& scope,
                                         int64_t memory_limit,
                                         const CostModel& cost,
                                         StepModel& model, StepModel& outermost)
    : scope_(scope),
      memory_limit_(memory_limit),
      cost_(cost),
      model_(model),
      outermost_(outermost) {}

std::vector<Finalist> ClosedFormFinalists::Find(double lowered_share) {
  const auto executable_limit = static_cast<int64_t>(
      (scope_.lowers ? lowered_share : 1) * static_cast<double>(memory_limit_));
  SearchLimits limits;
  // Without a simulation nothing tells the best ones apart.
  if (!scope_.simulates) {
    limits.num_kept = 1;
  } else if (!scope_.has_plan_only) {
    limits.num_kept = kSearchBudget.executable_finalists;
  }
  const FastestLayouts found = FindIn(
      scope_.all, scope_.has_plan_only ? memory_limit_ : executable_limit,
      limits, model_);
  std::vector<Finalist> finalists;
  if (found.best.empty()) return finalists;
  for (const RankedLayout& ranked : found.best) {
    finalists.push_back(FinalistOf(ranked, false));
  }
  optimality_gap_ = found.optimality_gap;
  slowest_kept_s_ = found.best.size() < static_cast<size_t>(limits.num_kept)
                        ? std::numeric_limits<double>::infinity()
                        : found.best.back().prediction.time.step_time_s();
  if (scope_.has_plan_only) {
    if (scope_.simulates) AddOutermost(found, &finalists);
    AddExecutable(executable_limit, &finalists);
  }
  return finalists;
}

// Adds layouts with the pipeline outermost that are faster than those of
// `inner`.
void ClosedFormFinalists::AddOutermost(const FastestLayouts& inner,
                                       std::vector<Finalist>* finalists) {
  const FastestLayouts found =
      FindIn(scope_.all, memory_limit_,
             {.slowest_s = inner.best.back().prediction.time.step_time_s()},
             outermost_);
  for (const RankedLayout& ranked : found.best) {
    // The orders differ only where both axes do.
    if (ranked.layout.pipeline == 1 || ranked.layout.data == 1) continue;
    finalists->push_back(FinalistOf(ranked, true));
  }
  absl::c_stable_sort(*finalists, [](const Finalist& a, const Finalist& b) {
    return a.closed_form.step_time_s < b.closed_form.step_time_s;
  });
  optimality_gap_ = finalists->front().closed_form.step_time_s /
                        std::min(inner.floor_s, found.floor_s) -
                    1;
  if (finalists->size() > inner.best.size()) {
    finalists->resize(inner.best.size());
  }
}

void ClosedFormFinalists::AddExecutable(int64_t memory_limit,
                                        std::vector<Finalist>* finalists) {
  if (!scope_.executable.has_value()) return;
  const bool has_executable =
      absl::c_any_of(*finalists, [&](const Finalist& finalist) {
        return !finalist.pipeline_outermost &&
               CheckExecutable(scope_.all.space().model, finalist.layout).ok();
      });
  if (!scope_.lowers && has_executable) return;
  const FastestLayouts found = FindIn(
      *scope_.executable, memory_limit,
      {.num_kept = scope_.lowers ? kSearchBudget.executable_finalists : 1},
      model_);
  for (const RankedLayout& ranked : found.best) {
    AddUnlessKnown(ranked, finalists);
  }
}

bool ClosedFormFinalists::AddCloseBehind(double fastest_s,
                                         std::vector<Finalist>* finalists) {
  if (slowest_kept_s_ >= fastest_s) return false;
  const FastestLayouts more = FindIn(
      scope_.all, memory_limit_,
      {.num_kept = kSearchBudget.kept_at_second_look, .slowest_s = fastest_s},
      model_);
  bool adds = false;
  for (const RankedLayout& ranked : more.best) {
    adds |= AddUnlessKnown(ranked, finalists);
  }
  return adds;
}

std::vector<Finalist> ClosedFormFinalists::FasterWithMoreMemory(
    double chosen_s) {
  std::vector<Finalist> faster;
  if (layouts_considered_ > kSearchBudget.most_priced_for_neighbours) {
    return faster;
  }
  const FastestLayouts found =
      FindIn(scope_.all, std::numeric_limits<int64_t>::max(),
             {.slowest_s = chosen_s}, model_);
  for (const RankedLayout& ranked : found.best) {
    if (ranked.prediction.memory.total() <= memory_limit_) continue;
    faster.push_back(FinalistOf(ranked, false));
  }
  return faster;
}

FastestLayouts ClosedFormFinalists::FindIn(const LayoutTree& tree,
                                           int64_t memory_limit,
                                           SearchLimits limits,
                                           StepModel& model) {
  limits.stop = scope_.stop;
  StepEvaluator evaluator(tree, model);
  const FastestLayouts found =
      FindFastestLayouts(tree, memory_limit, limits, evaluator);
  layouts_considered_ += found.layouts_considered;
  return found;
}

Finalist ClosedFormFinalists::FinalistOf(const RankedLayout& ranked,
                                         bool pipeline_outermost) const {
  const ModelSpec& model = scope_.all.space().model;
  const bool can_be_lowered = scope_.lowers && !pipeline_outermost &&
                              CheckExecutable(model, ranked.layout).ok() &&
                              CheckProfile(ranked.layout, cost_).ok();
  return {.layout = ranked.layout,
          .pipeline_outermost = pipeline_outermost,
          .can_be_lowered = can_be_lowered,
          .fits = ranked.prediction.memory.total() <= memory_limit_,
          .listed_bytes = {},
          .closed_form =
              PredictionOf(model, ranked.layout, cost_, ranked.prediction)};
}

bool ClosedFormFinalists::AddUnlessKnown(
    const RankedLayout& ranked, std::vector<Finalist>* finalists) const {
  const bool is_known = absl::c_any_of(*finalists, [&](const Finalist& known) {
    return !known.pipeline_outermost && known.layout == ranked.layout;
  });
  if (!is_known) finalists->push_back(FinalistOf(ranked, false));
  return !is_known;
}

}  // namespace millrace
