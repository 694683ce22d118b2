#include "planner/search/pass_finalists.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "planner/job/executable.h"
#include "planner/pipeline/order_bound.h"
#include "planner/search/listed_order.h"
#include "planner/search/prediction.h"
#include "planner/search/search_budget.h"

namespace millrace {
namespace {

constexpr double kNoPassBound = std::numeric_limits<double>::infinity();

// Simulation adds less than this share to the closed form, except where chunks
// are uneven: then more layouts are simulated.
constexpr double kFarBehind = 1.03;

int64_t NumPasses(const Layout& layout) {
  return int64_t{2} * layout.pipeline * layout.interleave *
         layout.most_microbatches();
}

void SortSimulatedFirst(std::vector<Finalist>* finalists) {
  absl::c_stable_sort(*finalists, [](const Finalist& a, const Finalist& b) {
    if (a.passes.has_value() != b.passes.has_value()) {
      return a.passes.has_value();
    }
    return a.finest().step_time_s < b.finest().step_time_s;
  });
}

}  // namespace

Implementation ImplementationOf(bool pipeline_outermost) {
  Implementation implementation;
  implementation.pipeline_outermost = pipeline_outermost;
  return implementation;
}

PassFinalists::PassFinalists(const LayoutTree& tree, int64_t memory_limit,
                             const CostModel& cost, StepModel& model,
                             StepModel& outermost, std::stop_token stop)
    : tree_(tree),
      memory_limit_(memory_limit),
      cost_(cost),
      model_(model),
      outermost_(outermost),
      stop_(std::move(stop)) {}

absl::Status PassFinalists::Simulate(std::vector<Finalist>* finalists) {
  int64_t num_passes = 0;
  double fastest_s = kNoPassBound;
  for (size_t i = 0; i < finalists->size(); ++i) {
    RETURN_IF_ERROR(CheckNotStopped(stop_));
    Finalist& finalist = (*finalists)[i];
    if (finalist.passes.has_value()) {
      fastest_s = std::min(fastest_s, finalist.passes->step_time_s);
      continue;
    }
    num_passes += NumPasses(finalist.layout);
    const bool is_needed =
        i < kSearchBudget.least_simulated_by_passes ||
        finalist.closed_form.step_time_s * kFarBehind < fastest_s;
    if (num_passes >
        (is_needed ? kSearchBudget.most_passes : kSearchBudget.passes))
      break;
    ASSIGN_OR_RETURN(const PassStep step, StepOf(finalist));
    ASSIGN_OR_RETURN(const PassSimulation simulation,
                     SimulatePasses(step, {.overlap = cost_.profile().overlap,
                                           .keeps_timeline = false}));
    TakeSimulated(simulation, &finalist);
    fastest_s = std::min(fastest_s, simulation.step_time_s);
  }
  SortSimulatedFirst(finalists);
  return absl::OkStatus();
}

absl::Status PassFinalists::List(std::vector<Finalist>* finalists) {
  const bool is_asked_for = tree_.ListsPasses();
  if (!is_asked_for && tree_.space().constraints.schedule != "auto") {
    return absl::OkStatus();
  }
  const int64_t most_passes = is_asked_for
                                  ? kSearchBudget.most_passes
                                  : kSearchBudget.list_scheduled_passes;
  int64_t num_passes = 0;
  size_t num_listed = 0;
  double fastest_s = kNoPassBound;
  for (Finalist& finalist : *finalists) {
    RETURN_IF_ERROR(CheckNotStopped(stop_));
    if (!finalist.passes.has_value()) continue;
    fastest_s = std::min(fastest_s, finalist.passes->step_time_s);
    const Layout& layout = finalist.layout;
    if (layout.pipeline == 1 ||
        (!is_asked_for && !finalist.pipeline_outermost &&
         CheckExecutable(tree_.space().model, layout).ok())) {
      continue;
    }
    num_passes += NumPasses(layout);
    if (++num_listed > kSearchBudget.list_scheduled || num_passes > most_passes)
      break;
    if (!is_asked_for) {
      ASSIGN_OR_RETURN(const double least_s, LeastSeconds(finalist));
      if (least_s >= fastest_s) continue;
    }
    const double known_s =
        is_asked_for ? kNoPassBound : finalist.passes->step_time_s;
    RETURN_IF_ERROR(ListOne(known_s, &finalist));
    fastest_s = std::min(fastest_s, finalist.passes->step_time_s);
  }
  SortSimulatedFirst(finalists);
  return absl::OkStatus();
}

absl::StatusOr<double> PassFinalists::LeastSeconds(const Finalist& finalist) {
  ASSIGN_OR_RETURN(const PassStep step, StepOf(finalist));
  std::vector<int64_t> bytes;
  for (const StepMemory& memory :
       ModelOf(finalist).MemoryByStage(finalist.layout)) {
    bytes.push_back(std::max<int64_t>(
        1, memory_limit_ - memory.total() + memory.activations));
  }
  // Passes hide no gather or reduction of their chunk's first or last bucket.
  const double exposed_share =
      1 - step.data_hidden_share +
      step.data_hidden_share /
          (static_cast<double>(finalist.layout.interleave) * step.num_buckets);
  double ends_s = kNoPassBound;
  for (const StepModel::StepEnds& ends : step.ends) {
    ends_s = std::min(
        ends_s, ends.optimizer_s + exposed_share * (ends.parameter_gather_s +
                                                    ends.gradient_reduction_s));
  }
  return LowerBoundOfMakespan(step.costs, bytes) + ends_s;
}

absl::Status PassFinalists::ListOne(double known_s, Finalist* finalist) {
  ASSIGN_OR_RETURN(const PassStep step, StepOf(*finalist));
  ASSIGN_OR_RETURN(const std::optional<ListedPasses> listed,
                   FindListedOrder(finalist->layout, step,
                                   {.overlap = cost_.profile().overlap,
                                    .keeps_timeline = false},
                                   memory_limit_, known_s, ModelOf(*finalist)));
  if (!listed.has_value()) return absl::OkStatus();
  // A finalist that can be lowered gets an order of its Programs' own.
  if (!finalist->can_be_lowered) {
    finalist->listed_bytes = listed->bytes;
    finalist->closed_form.step_bytes += listed->more_bytes;
    finalist->closed_form.closed_form->memory.activations += listed->more_bytes;
  }
  TakeSimulated(listed->simulation, finalist);
  return absl::OkStatus();
}

absl::StatusOr<PassStep> PassFinalists::StepOf(const Finalist& finalist) {
  return PassStepOf(finalist.layout,
                    ImplementationOf(finalist.pipeline_outermost),
                    ModelOf(finalist));
}

void PassFinalists::TakeSimulated(const PassSimulation& simulation,
                                  Finalist* finalist) const {
  Prediction prediction = finalist->closed_form;
  const StepTime& time = prediction.closed_form->time;
  FillTime(tree_.space().model, finalist->layout, cost_, PriceModel::kPasses,
           simulation.step_time_s, &prediction);
  prediction.bubble_fraction = simulation.bubble_fraction;
  // Gathers and reductions of every micro-batch are part of its passes.
  const double exposed_data = finalist->layout.shards_gradients()
                                  ? time.exposed_data_s / simulation.step_time_s
                                  : simulation.exposed_data_fraction;
  prediction.exposed_communication_fraction =
      exposed_data +
      (time.exposed_tensor_s + time.exposed_context_s + time.exposed_expert_s) /
          simulation.step_time_s;
  prediction.recompute_fraction = time.recompute_s / simulation.step_time_s;
  finalist->passes = prediction;
}

}  // namespace millrace
