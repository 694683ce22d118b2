#include "planner/search/pass_finalists.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/job/executable.h"
#include "planner/search/branch_and_bound.h"
#include "planner/search/listed_floor.h"
#include "planner/search/listed_order.h"
#include "planner/search/prediction.h"

namespace millrace {
namespace {

constexpr double kNoPassBound = std::numeric_limits<double>::infinity();

// Two layouts are simulated at least, more within so many passes. These two
// have a bound too: a million passes take a second and half a GiB. In so long a
// step the bubble and what else simulation tells of its ends hardly counts.
constexpr size_t kMinimumSimulatedPasses = 2;
constexpr int64_t kPassBudget = 300'000;
constexpr int64_t kMostPasses = 2'000'000;
// What simulation says beyond the closed form is less than this share, but for
// uneven chunks: then more are simulated.
constexpr double kFarBehind = 1.03;
// So many of the fastest are list-scheduled, within so many passes: a tenth of
// a second.
constexpr size_t kMostListedPasses = 3;
constexpr int64_t kListedPasses = 60'000;
// Of the search for floors, which takes some tenths of a millisecond for each.
constexpr int32_t kFloorsKept = 32;
constexpr int64_t kMostFloors = 5'000;
// Of the layouts that such floors leave open, passes to be ordered: seconds.
constexpr int64_t kOpenPasses = 600'000;
// Floors nearer to the best plan are not worth listing.
constexpr double kNearFloor = 1.001;

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
        i < kMinimumSimulatedPasses ||
        alternative.prediction.step_time_s * kFarBehind < fastest_s;
    if (num_passes > (is_needed ? kMostPasses : kPassBudget)) break;
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
  const int64_t most_passes = is_asked_for ? kMostPasses : kListedPasses;
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
    if (++num_listed > kMostListedPasses || num_passes > most_passes) break;
    if (!is_asked_for && passes_decide) {
      ASSIGN_OR_RETURN(const double floor_s, FloorOf(alternative));
      if (floor_s >= fastest_s) continue;
    }
    const double known_s =
        is_asked_for ? kNoPassBound : alternative.prediction.step_time_s;
    RETURN_IF_ERROR(ListOne(known_s, &alternative).status());
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
      kMostPasses, "); set layout.schedule to auto"));
}

absl::StatusOr<ListedFloor> PassFinalists::ListNearFloor(
    std::vector<Alternative>* best) {
  double best_s = best->front().prediction.step_time_s;
  ASSIGN_OR_RETURN(const ClusterStep chosen, StepOf(best->front()));
  ListedFloor listed;
  double floor_s = best_s;
  std::vector<Open> open;
  for (const bool outermost : {false, true}) {
    ListFloorEvaluator evaluator(planned_, outermost ? outermost_ : model_,
                                 memory_limit_, chosen.data_hidden_share,
                                 TrafficOf(chosen, cost_.profile().overlap));
    const ClusterSearchResult found =
        SearchCluster(planned_, memory_limit_,
                      {.num_kept = kFloorsKept,
                       .slowest_s = best_s,
                       .num_predictions = kMostFloors},
                      evaluator);
    listed.layouts_considered += found.layouts_considered;
    floor_s = std::min(floor_s, found.floor_s);
    for (const RankedLayout& ranked : found.best) {
      for (const Layout& variant : planned_.Variants(ranked.layout)) {
        if (variant.zero != ranked.layout.zero) continue;
        RETURN_IF_ERROR(AddOpen(variant, outermost, &open));
      }
      if (const auto mixed = evaluator.QuickestByStage(ranked.layout)) {
        RETURN_IF_ERROR(AddOpen(*mixed, outermost, &open));
      }
    }
  }
  std::stable_sort(open.begin(), open.end(), [](const Open& a, const Open& b) {
    return a.floor_s < b.floor_s;
  });
  int64_t num_passes = 0;
  for (Open& next : open) {
    num_passes += NumPasses(next.alternative.layout);
    if (next.floor_s * kNearFloor >= best_s || num_passes > kOpenPasses) break;
    ASSIGN_OR_RETURN(const bool is_faster, ListOne(best_s, &next.alternative));
    if (!is_faster) continue;
    best_s = next.alternative.prediction.step_time_s;
    best->push_back(std::move(next.alternative));
  }
  SortSimulatedFirst(best);
  listed.optimality_gap = best_s / std::min(best_s, floor_s) - 1;
  return listed;
}

absl::Status PassFinalists::AddOpen(const Layout& layout,
                                    bool pipeline_outermost,
                                    std::vector<Open>* open) {
  Alternative alternative;
  alternative.layout = layout;
  alternative.pipeline_outermost = pipeline_outermost;
  alternative.prediction = PredictionOf(planned_.space().model, layout, cost_,
                                        ModelOf(alternative).Predict(layout));
  ASSIGN_OR_RETURN(const double floor_s, FloorOf(alternative));
  // Ranks in another order may cost the same.
  const bool is_known =
      std::any_of(open->begin(), open->end(), [&](const Open& known) {
        return known.floor_s == floor_s && known.alternative.layout == layout;
      });
  if (!is_known) open->push_back({floor_s, std::move(alternative)});
  return absl::OkStatus();
}

absl::StatusOr<double> PassFinalists::FloorOf(const Alternative& alternative) {
  ASSIGN_OR_RETURN(const ClusterStep step, StepOf(alternative));
  std::vector<int64_t> bytes;
  for (const StepMemory& memory :
       ModelOf(alternative).MemoryByStage(alternative.layout)) {
    bytes.push_back(std::max<int64_t>(
        1, memory_limit_ - memory.total() + memory.activations));
  }
  return LeastStepSeconds(step, bytes, cost_.profile().overlap);
}

absl::StatusOr<bool> PassFinalists::ListOne(double known_s,
                                            Alternative* alternative) {
  ASSIGN_OR_RETURN(const ClusterStep step, StepOf(*alternative));
  ASSIGN_OR_RETURN(
      const std::optional<ListedPasses> listed,
      FindListedOrder(
          alternative->layout, step,
          {.overlap = cost_.profile().overlap, .keeps_timeline = false},
          memory_limit_, known_s, ModelOf(*alternative)));
  if (!listed.has_value()) return false;
  Prediction& prediction = alternative->prediction;
  alternative->listed_bytes = listed->bytes;
  prediction.step_bytes += listed->more_bytes;
  prediction.closed_form->memory.activations += listed->more_bytes;
  TakeSimulated(listed->simulation, alternative);
  return true;
}

absl::StatusOr<ClusterStep> PassFinalists::StepOf(
    const Alternative& alternative) {
  return ClusterStepOf(alternative.layout,
                       ImplementationOf(alternative.pipeline_outermost),
                       cost_.profile(), ModelOf(alternative));
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
