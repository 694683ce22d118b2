#include "planner/search/short_step.h"

#include "base/status_macros.h"
#include "planner/lower/lower.h"
#include "planner/search/prediction.h"
#include "planner/search/program_prediction.h"
#include "planner/search/search_budget.h"
#include "planner/simulate/timeline.h"

namespace millrace {
namespace {

// Seconds of all ranks' mean.
struct Seconds {
  double step = 0;
  double bubble = 0;
  double exposed = 0;
  double recompute = 0;
};

Seconds SecondsOf(const Prediction& prediction) {
  const double step_s = prediction.step_time_s;
  return {.step = step_s,
          .bubble = prediction.bubble_fraction * step_s,
          .exposed = prediction.exposed_communication_fraction * step_s,
          .recompute = prediction.recompute_fraction * step_s};
}

// Takes the memory of `layout` with so many micro-batches, adds its
// instructions to those of `step`, and returns its seconds; zero of them if it
// needs more than `memory_limit` bytes.
absl::StatusOr<Seconds> Lower(const ModelSpec& model, Layout layout,
                              int32_t num_microbatches, const CostModel& cost,
                              int64_t memory_limit, const std::stop_token& stop,
                              ShortStep* step) {
  layout.SetMicrobatches(num_microbatches);
  ASSIGN_OR_RETURN(const std::vector<Program> programs,
                   BuildTrainingPrograms(model, layout, stop));
  for (const Program& program : programs) {
    step->num_instructions += static_cast<int64_t>(program.instructions.size());
  }
  FillMemory(programs, cost.profile().memory_overhead, &step->prediction);
  if (step->prediction.memory_bytes() > memory_limit) return Seconds{};
  ASSIGN_OR_RETURN(const Timeline timeline,
                   SimulatePrograms(programs, cost, stop));
  FillSimulated(model, programs, cost, timeline, &step->prediction);
  return SecondsOf(step->prediction);
}

}  // namespace

std::optional<int32_t> MostShortMicrobatches(const Layout& layout) {
  const int32_t few = kSearchBudget.shorter_microbatches_per_stage *
                      layout.pipeline,
                more = kSearchBudget.longer_microbatches_per_stage *
                       layout.pipeline;
  if (layout.schedule == Schedule::kListScheduled ||
      (layout.pipeline > 1 && layout.shards_gradients()) ||
      layout.most_microbatches() <
          kSearchBudget.least_shortening * (few + more)) {
    return std::nullopt;
  }
  return more;
}

absl::StatusOr<std::optional<ShortStep>> PredictFromFewMicrobatches(
    const ModelSpec& model, const Layout& layout, const CostModel& cost,
    int64_t memory_limit, const std::stop_token& stop) {
  const std::optional<int32_t> most = MostShortMicrobatches(layout);
  if (!most.has_value()) return std::nullopt;
  const int32_t few =
      kSearchBudget.shorter_microbatches_per_stage * layout.pipeline;
  const int32_t more = *most;
  RETURN_IF_ERROR(CheckProfile(layout, cost));
  ShortStep step;
  ASSIGN_OR_RETURN(const Seconds a,
                   Lower(model, layout, few, cost, memory_limit, stop, &step));
  if (step.prediction.memory_bytes() > memory_limit) return step;
  ASSIGN_OR_RETURN(const Seconds b,
                   Lower(model, layout, more, cost, memory_limit, stop, &step));
  if (step.prediction.memory_bytes() > memory_limit) return step;
  // The micro-batches beyond `more` add so many times what those from `few` to
  // `more` added.
  const double times =
      static_cast<double>(layout.most_microbatches() - more) / (more - few);
  const auto all = [times](double fewer, double most) {
    return most + times * (most - fewer);
  };
  const double step_s = all(a.step, b.step);
  Prediction& prediction = step.prediction;
  FillTime(model, layout, cost, PriceModel::kInstructions, step_s, &prediction);
  prediction.bubble_fraction = all(a.bubble, b.bubble) / step_s;
  prediction.exposed_communication_fraction =
      all(a.exposed, b.exposed) / step_s;
  prediction.recompute_fraction = all(a.recompute, b.recompute) / step_s;
  return step;
}

}  // namespace millrace
