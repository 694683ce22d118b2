#include "planner/search/pass_finalists.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/job/executable.h"
#include "planner/pipeline/order_bound.h"
#include "planner/search/listed_order.h"
#include "planner/search/prediction.h"
#include "planner/search/search_budget.h"

namespace millrace {
namespace {

constexpr double kNoPassBound = std::numeric_limits<double>::infinity();

// What simulation says beyond the closed form is less than this share, but for
// uneven chunks: then more are simulated.
constexpr double kFarBehind = 1.03;

int64_t NumPasses(const Layout& layout) {
  return int64_t{2} * layout.pipeline * layout.interleave *
         layout.num_microbatches;
}

void SortSimulatedFirst(std::vector<Alternative>* best) {
  std::stable_sort(best->begin(), best->end(),
                   [](const Alternative& a, const Alternative& b) {
                     if (a.simulated != b.simulated) return a.simulated;
                     return a.prediction.step_time_s < b.prediction.step_time_s;
                   });
}

}  // namespace

Implementation ImplementationOf(bool pipeline_outermost) {
  Implementation implementation;
  implementation.pipeline_outermost = pipeline_outermost;
  return implementation;
}

bool IsExecutable(const ModelSpec& model, const Alternative& alternative) {
  return !alternative.pipeline_outermost &&
         CheckExecutable(model, alternative.layout).ok();
}

PassFinalists::PassFinalists(const PlannedSpace& planned, int64_t memory_limit,
                             const CostModel& cost, StepModel& model,
                             StepModel& outermost)
    : planned_(planned),
      memory_limit_(memory_limit),
      cost_(cost),
      model_(model),
      outermost_(outermost) {}

absl::Status PassFinalists::Simulate(std::vector<Alternative>* best) {
  int64_t num_passes = 0;
  double fastest_s = kNoPassBound;
  for (size_t i = 0; i < best->size(); ++i) {
    Alternative& alternative = (*best)[i];
    if (alternative.simulated) {
      fastest_s = std::min(fastest_s, alternative.prediction.step_time_s);
      continue;
    }
    num_passes += NumPasses(alternative.layout);
    const bool is_needed =
        i < kSearchBudget.least_simulated_by_passes ||
        alternative.prediction.step_time_s * kFarBehind < fastest_s;
    if (num_passes >
        (is_needed ? kSearchBudget.most_passes : kSearchBudget.passes))
      break;
    ASSIGN_OR_RETURN(const ClusterStep step, StepOf(alternative));
    ASSIGN_OR_RETURN(const ClusterSimulation simulation,
                     SimulateCluster(step, {.overlap = cost_.profile().overlap,
                                            .keeps_timeline = false}));
    TakeSimulated(simulation, &alternative);
    fastest_s = std::min(fastest_s, simulation.step_time_s);
  }
  SortSimulatedFirst(best);
  return absl::OkStatus();
}

absl::Status PassFinalists::List(bool passes_decide,
                                 std::vector<Alternative>* best) {
  const bool is_asked_for = planned_.ListsPasses();
  if (!is_asked_for && planned_.space().constraints.schedule != "auto") {
    return absl::OkStatus();
  }
  const int64_t most_passes = is_asked_for
                                  ? kSearchBudget.most_passes
                                  : kSearchBudget.list_scheduled_passes;
  int64_t num_passes = 0;
  size_t num_listed = 0;
  double fastest_s = kNoPassBound;
  for (Alternative& alternative : *best) {
    if (alternative.simulated) {
      fastest_s = std::min(fastest_s, alternative.prediction.step_time_s);
    }
    const Layout& layout = alternative.layout;
    if (!alternative.simulated || layout.pipeline == 1 ||
        (!is_asked_for && IsExecutable(planned_.space().model, alternative))) {
      continue;
    }
    num_passes += NumPasses(layout);
    if (++num_listed > kSearchBudget.list_scheduled || num_passes > most_passes)
      break;
    if (!is_asked_for && passes_decide) {
      ASSIGN_OR_RETURN(const double least_s, LeastSeconds(alternative));
      if (least_s >= fastest_s) continue;
    }
    const double known_s =
        is_asked_for ? kNoPassBound : alternative.prediction.step_time_s;
    RETURN_IF_ERROR(ListOne(known_s, &alternative));
    fastest_s = std::min(fastest_s, alternative.prediction.step_time_s);
  }
  SortSimulatedFirst(best);
  return absl::OkStatus();
}

absl::Status PassFinalists::LeaveListed(std::vector<Alternative>* best) const {
  std::erase_if(*best, [](const Alternative& alternative) {
    return alternative.listed_bytes.empty();
  });
  if (!best->empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "layout.schedule is list, but the fastest layouts on ",
      planned_.space().num_devices,
      " devices have no memory for one micro-batch a stage in any order, or "
      "more passes than are ordered (",
      kSearchBudget.most_passes, "); set layout.schedule to auto"));
}

absl::StatusOr<double> PassFinalists::LeastSeconds(
    const Alternative& alternative) {
  ASSIGN_OR_RETURN(const ClusterStep step, StepOf(alternative));
  std::vector<int64_t> bytes;
  for (const StepMemory& memory :
       ModelOf(alternative).MemoryByStage(alternative.layout)) {
    bytes.push_back(std::max<int64_t>(
        1, memory_limit_ - memory.total() + memory.activations));
  }
  // Passes hide no gather or reduction of their chunk's first or last bucket.
  const double exposed_share =
      1 - step.data_hidden_share +
      step.data_hidden_share /
          (static_cast<double>(alternative.layout.interleave) *
           step.num_buckets);
  double ends_s = kNoPassBound;
  for (const StepModel::StepEnds& ends : step.ends) {
    ends_s = std::min(
        ends_s, ends.optimizer_s + exposed_share * (ends.parameter_gather_s +
                                                    ends.gradient_reduction_s));
  }
  return LowerBoundOfMakespan(step.costs, bytes) + ends_s;
}

absl::Status PassFinalists::ListOne(double known_s, Alternative* alternative) {
  ASSIGN_OR_RETURN(const ClusterStep step, StepOf(*alternative));
  ASSIGN_OR_RETURN(
      const std::optional<ListedPasses> listed,
      FindListedOrder(
          alternative->layout, step,
          {.overlap = cost_.profile().overlap, .keeps_timeline = false},
          memory_limit_, known_s, ModelOf(*alternative)));
  if (!listed.has_value()) return absl::OkStatus();
  Prediction& prediction = alternative->prediction;
  alternative->listed_bytes = listed->bytes;
  prediction.step_bytes += listed->more_bytes;
  prediction.closed_form->memory.activations += listed->more_bytes;
  TakeSimulated(listed->simulation, alternative);
  return absl::OkStatus();
}

absl::StatusOr<ClusterStep> PassFinalists::StepOf(
    const Alternative& alternative) {
  return ClusterStepOf(alternative.layout,
                       ImplementationOf(alternative.pipeline_outermost),
                       ModelOf(alternative));
}

void PassFinalists::TakeSimulated(const ClusterSimulation& simulation,
                                  Alternative* alternative) const {
  Prediction& prediction = alternative->prediction;
  const StepTime& time = prediction.closed_form->time;
  FillTime(planned_.space().model, alternative->layout, cost_,
           simulation.step_time_s, &prediction);
  prediction.bubble_fraction = simulation.bubble_fraction;
  // What is gathered and reduced for every micro-batch is part of its passes.
  const double exposed_data = alternative->layout.shards_gradients()
                                  ? time.exposed_data_s / simulation.step_time_s
                                  : simulation.exposed_data_fraction;
  prediction.exposed_communication_fraction =
      exposed_data +
      (time.exposed_tensor_s + time.exposed_context_s + time.exposed_expert_s) /
          simulation.step_time_s;
  prediction.recompute_fraction = time.recompute_s / simulation.step_time_s;
  alternative->simulated = true;
}

}  // namespace millrace
