#include "planner/search/short_step.h"

#include "base/status_macros.h"
#include "planner/lower/lower.h"
#include "planner/search/prediction.h"
#include "planner/search/program_prediction.h"
#include "planner/search/search_budget.h"
#include "planner/simulate/timeline.h"

namespace millrace {
namespace {

// Beyond what the extrapolation is off by, which is a hundredth of that
// (tests/planner/search/short_step_test.cc).
constexpr double kSurely = 1.005;

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

// Adds what `layout` with so many micro-batches has to what is kept of the last
// such, and returns its seconds.
absl::StatusOr<Seconds> Lower(const ModelSpec& model, Layout layout,
                              int32_t num_microbatches, const CostModel& cost,
                              ShortStep* step) {
  layout.num_microbatches = num_microbatches;
  ASSIGN_OR_RETURN(const std::vector<Program> programs,
                   BuildTrainingPrograms(model, layout));
  ASSIGN_OR_RETURN(const Timeline timeline, SimulatePrograms(programs, cost));
  const MemoryOverhead& overhead = cost.profile().memory_overhead;
  FillMemory(programs, overhead, &step->prediction);
  FillSimulated(model, programs, cost, timeline, &step->prediction);
  step->stage_bytes.clear();
  step->num_instructions = 0;
  for (const Program& program : programs) {
    step->stage_bytes.push_back(StageBytes(program, overhead));
    step->num_instructions += static_cast<int64_t>(program.instructions.size());
  }
  return SecondsOf(step->prediction);
}

}  // namespace

bool ShortStep::IsSlowerThan(double step_time_s) const {
  return prediction.step_time_s > kSurely * step_time_s;
}

absl::StatusOr<std::optional<ShortStep>> PredictFromFewMicrobatches(
    const ModelSpec& model, const Layout& layout, const CostModel& cost) {
  const int32_t few = kSearchBudget.shorter_microbatches_per_stage *
                      layout.pipeline,
                more = kSearchBudget.longer_microbatches_per_stage *
                       layout.pipeline;
  if (layout.schedule == Schedule::kListScheduled ||
      (layout.pipeline > 1 && layout.shards_gradients()) ||
      layout.num_microbatches < kSearchBudget.least_shortening * (few + more)) {
    return std::nullopt;
  }
  RETURN_IF_ERROR(CheckProfile(layout, cost));
  ShortStep step;
  ASSIGN_OR_RETURN(const Seconds a, Lower(model, layout, few, cost, &step));
  const int64_t fewer_instructions = step.num_instructions;
  ASSIGN_OR_RETURN(const Seconds b, Lower(model, layout, more, cost, &step));
  // What the micro-batches beyond `more` add, over what those beyond `few` did.
  const double times =
      static_cast<double>(layout.num_microbatches - more) / (more - few);
  const auto all = [times](double fewer, double most) {
    return most + times * (most - fewer);
  };
  step.num_instructions =
      static_cast<int64_t>(all(static_cast<double>(fewer_instructions),
                               static_cast<double>(step.num_instructions)));
  const double step_s = all(a.step, b.step);
  Prediction& prediction = step.prediction;
  FillTime(model, layout, cost, step_s, &prediction);
  prediction.bubble_fraction = all(a.bubble, b.bubble) / step_s;
  prediction.exposed_communication_fraction =
      all(a.exposed, b.exposed) / step_s;
  prediction.recompute_fraction = all(a.recompute, b.recompute) / step_s;
  return step;
}

}  // namespace millrace
