#include "planner/search/instruction_finalists.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "planner/job/executable.h"
#include "planner/lower/program_size.h"
#include "planner/search/prediction.h"
#include "planner/search/program_prediction.h"
#include "planner/search/search_budget.h"
#include "planner/search/short_step.h"

namespace millrace {
namespace {

constexpr double kFinalistRounding = 1e-9;

// What instructions say of a layout, and over what passes and the closed form
// do.
struct Ratios {
  Layout layout;
  Prediction prediction;   // By instructions.
  double over_passes = 0;  // 0: not simulated by passes.
  double over_closed_form = 0;
};

// In how many ways two layouts are alike.
int Likeness(const Layout& a, const Layout& b) {
  const bool alike[] = {a.pipeline == b.pipeline,
                        a.interleave == b.interleave,
                        a.schedule == b.schedule,
                        a.data == b.data,
                        a.zero == b.zero,
                        a.tensor == b.tensor,
                        a.context == b.context,
                        a.micro_batch == b.micro_batch,
                        RecomputeKey(a) == RecomputeKey(b)};
  return static_cast<int>(std::count(std::begin(alike), std::end(alike), true));
}

// Of the layouts most like this one, their geometric mean; 1 without any.
double RatioFor(const Layout& layout, double Ratios::*ratio,
                const std::vector<Ratios>& known) {
  int most = 0, count = 0;
  double sum_of_logs = 0;
  for (const Ratios& other : known) {
    const int likeness = Likeness(layout, other.layout);
    if (other.*ratio == 0 || likeness < most) continue;
    if (likeness > most) {
      most = likeness;
      count = 0;
      sum_of_logs = 0;
    }
    ++count;
    sum_of_logs += std::log(other.*ratio);
  }
  return count == 0 ? 1 : std::exp(sum_of_logs / count);
}

void TakeMemory(const Prediction& from, Prediction* to) {
  to->persistent_bytes = from.persistent_bytes;
  to->step_bytes = from.step_bytes;
  to->overhead_bytes = from.overhead_bytes;
  to->parameter_bytes = from.parameter_bytes;
  to->gradient_bytes = from.gradient_bytes;
  to->optimizer_bytes = from.optimizer_bytes;
}

// Of all micro-batches. Keeps it in `fastest` if it fits and is. Returns how
// many instructions that took.
absl::StatusOr<int64_t> PriceInFull(const ModelSpec& model,
                                    const CostModel& cost, int64_t memory_limit,
                                    Alternative* finalist,
                                    std::optional<LoweredStep>* fastest) {
  Timeline timeline;
  std::vector<Program> programs;
  ASSIGN_OR_RETURN(
      finalist->prediction,
      PredictLayout(model, finalist->layout, cost, &timeline, &programs));
  int64_t num_instructions = 0;
  for (const Program& program : programs) {
    num_instructions += static_cast<int64_t>(program.instructions.size());
  }
  if (finalist->prediction.memory_bytes() <= memory_limit &&
      (!fastest->has_value() ||
       timeline.step_time_s < (*fastest)->prediction.step_time_s)) {
    *fastest = {.layout = finalist->layout,
                .prediction = finalist->prediction,
                .timeline = std::move(timeline),
                .programs = std::move(programs)};
  }
  return num_instructions;
}

double ClosedFormSeconds(const Prediction& prediction) {
  return prediction.closed_form->time.step_time_s();
}

}  // namespace

bool CanBeLowered(const ModelSpec& model, const Alternative& alternative,
                  const CostModel& cost) {
  return !alternative.pipeline_outermost &&
         CheckExecutable(model, alternative.layout).ok() &&
         CheckProfile(alternative.layout, cost).ok();
}

absl::StatusOr<std::optional<LoweredStep>> PriceByInstructions(
    const ModelSpec& model, const CostModel& cost, int64_t memory_limit,
    std::vector<Alternative>* finalists) {
  std::vector<Ratios> known;
  std::optional<LoweredStep> fastest;
  int64_t num_instructions = 0;
  for (Alternative& finalist : *finalists) {
    if (!CanBeLowered(model, finalist, cost)) continue;
    if ((known.size() >= kSearchBudget.least_finalists_lowered &&
         num_instructions >= kSearchBudget.instructions) ||
        !CheckProgramSize(model, finalist.layout).ok()) {
      continue;
    }
    const Prediction before = finalist.prediction;
    std::optional<ShortStep> shorter;
    if (fastest.has_value()) {
      ASSIGN_OR_RETURN(
          shorter, PredictFromFewMicrobatches(model, finalist.layout, cost));
    }
    if (shorter.has_value() &&
        shorter->IsSlowerThan(fastest->prediction.step_time_s)) {
      finalist.prediction = shorter->prediction;
      num_instructions += shorter->num_instructions;
    } else {
      ASSIGN_OR_RETURN(
          const int64_t count,
          PriceInFull(model, cost, memory_limit, &finalist, &fastest));
      num_instructions += count;
    }
    finalist.prediction.closed_form = before.closed_form;
    const double step_time_s = finalist.prediction.step_time_s;
    known.push_back(
        {.layout = finalist.layout,
         .prediction = finalist.prediction,
         .over_passes =
             finalist.simulated ? step_time_s / before.step_time_s : 0,
         .over_closed_form = step_time_s / ClosedFormSeconds(before)});
    finalist.by_passes = before;
    finalist.simulated = true;
    finalist.fits = finalist.prediction.memory_bytes() <= memory_limit;
  }
  if (known.empty()) return std::nullopt;
  for (Alternative& finalist : *finalists) {
    if (finalist.by_passes.has_value()) continue;
    finalist.by_passes = finalist.prediction;
    // Ranks in another order hold as much.
    for (const Ratios& other : known) {
      if (!(other.layout == finalist.layout)) continue;
      TakeMemory(other.prediction, &finalist.prediction);
      finalist.fits = other.prediction.memory_bytes() <= memory_limit;
    }
    const double ratio = RatioFor(
        finalist.layout,
        finalist.simulated ? &Ratios::over_passes : &Ratios::over_closed_form,
        known);
    FillTime(model, finalist.layout, cost,
             ratio * finalist.prediction.step_time_s, &finalist.prediction);
  }
  // Of equals what workers can execute.
  const auto seconds = [&](const Alternative& finalist) {
    return finalist.prediction.step_time_s *
           (CanBeLowered(model, finalist, cost) ? 1 : 1 + kFinalistRounding);
  };
  std::stable_sort(finalists->begin(), finalists->end(),
                   [&](const Alternative& a, const Alternative& b) {
                     if (a.fits != b.fits) return a.fits;
                     if (a.simulated != b.simulated) return a.simulated;
                     return seconds(a) < seconds(b);
                   });
  return fastest;
}

}  // namespace millrace
