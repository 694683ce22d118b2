#include "planner/planned_search.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "planner/cluster_search.h"
#include "planner/cluster_simulate.h"
#include "planner/executable.h"
#include "planner/finalists.h"
#include "planner/implementation.h"
#include "planner/layout_space.h"
#include "planner/list_order.h"
#include "planner/planned_space.h"
#include "planner/prediction.h"
#include "planner/step_evaluator.h"
#include "planner/step_model.h"

namespace millrace {
namespace {

// How many times the devices are looked at for a layout that fits.
constexpr int64_t kMostMoreDevices = 64;

// Two layouts are simulated at least, more within so many passes. These two
// have a bound too: a million passes take a second and half a GiB. In so long a
// step the bubble and what else simulation tells of its ends hardly counts.
constexpr size_t kMinimumSimulated = 2;
constexpr int64_t kPassBudget = 300'000;
constexpr int64_t kMostPasses = 2'000'000;
// What simulation says beyond the closed form is less than this share, but for
// uneven chunks: then more are simulated.
constexpr double kFarBehind = 1.03;
// So many of the fastest are list-scheduled, within so many passes: a tenth of
// a second.
constexpr size_t kMostListed = 3;
constexpr int64_t kListedPasses = 60'000;
// Layouts that workers can execute, of which instructions tell the fastest.
constexpr int32_t kExecutableFinalists = 6;

// What workers' steps are like, but for the order of the mesh axes.
Implementation WithOrder(bool pipeline_outermost) {
  return {.pipeline_outermost = pipeline_outermost};
}

int64_t NumPasses(const Layout& layout) {
  return int64_t{2} * layout.pipeline * layout.interleave *
         layout.num_microbatches;
}

// The prediction with its closed form's time alone.
Prediction WithoutSimulation(const ModelSpec& model, const Layout& layout,
                             const CostModel& cost,
                             const Prediction& prediction) {
  return PredictionOf(model, layout, cost, *prediction.closed_form);
}

class PlannedSearch {
 public:
  PlannedSearch(const LayoutSpace& space, int64_t memory_limit,
                const SearchInput& input, const CostModel& cost,
                StepModel& model, StepModel& outermost)
      : space_(space),
        memory_limit_(memory_limit),
        simulates_(input.simulates),
        lowers_(input.lowers && input.simulates),
        memory_is_the_jobs_(
            input.job.resources.memory_per_device_bytes.has_value()),
        cost_(cost),
        model_(model),
        outermost_(outermost) {}

  absl::StatusOr<PlannedChoice> Run() {
    const PlannedSpace planned(space_);
    if (!HasPlannedLayout(planned)) return ExplainNoPlannedLayout(planned);
    ClusterSearchLimits limits;
    // Where nothing is left to tell them apart, the best alone.
    if (!simulates_) limits.num_kept = 1;
    const ClusterSearchResult found = SearchIn(planned, limits, false);
    if (found.best.empty()) return ExplainNothingFits(planned);
    PlannedChoice choice{.optimality_gap = found.optimality_gap,
                         .layouts_considered = found.layouts_considered};
    for (const RankedLayout& ranked : found.best) Add(ranked, false, &choice);
    if (simulates_) AddOutermost(planned, found, &choice);
    AddExecutable(&choice);
    if (simulates_) {
      RETURN_IF_ERROR(SimulateBest(&choice.best));
      RETURN_IF_ERROR(ListBest(&choice.best));
    }
    if (planned.ListsPasses()) {
      choice.optimality_gap.reset();
      if (simulates_) RETURN_IF_ERROR(LeaveListed(&choice.best));
    }
    if (lowers_ && !planned.ListsPasses()) {
      RETURN_IF_ERROR(PriceByInstructions(space_.model, cost_, memory_limit_,
                                          &choice.best));
    }
    SayWhyOthersLost(&choice.best);
    return choice;
  }

 private:
  // Like is compared with like.
  void SayWhyOthersLost(std::vector<Alternative>* best) const {
    const Alternative& first = best->front();
    const Prediction chosen = first.prediction;
    const Prediction chosen_in_closed_form =
        WithoutSimulation(space_.model, first.layout, cost_, chosen);
    for (Alternative& alternative : *best) {
      const bool is_like_chosen = alternative.simulated == first.simulated;
      // Both of one scale again.
      if (!is_like_chosen && alternative.by_passes.has_value()) {
        alternative.prediction = *alternative.by_passes;
      }
      SayWhyItLost(is_like_chosen ? chosen : chosen_in_closed_form,
                   memory_limit_, is_like_chosen ? "" : kByClosedForm,
                   &alternative);
    }
  }

  ClusterSearchResult SearchIn(const PlannedSpace& planned,
                               const ClusterSearchLimits& limits,
                               bool pipeline_outermost) {
    StepEvaluator evaluator(planned, pipeline_outermost ? outermost_ : model_);
    return SearchCluster(planned, memory_limit_, limits, evaluator);
  }

  void Add(const RankedLayout& ranked, bool pipeline_outermost,
           PlannedChoice* choice) const {
    choice->best.push_back(
        {.layout = ranked.layout,
         .pipeline_outermost = pipeline_outermost,
         .prediction = PredictionOf(space_.model, ranked.layout, cost_,
                                    ranked.prediction)});
  }

  // What is faster with the pipeline outermost than what `inner` found.
  void AddOutermost(const PlannedSpace& planned,
                    const ClusterSearchResult& inner, PlannedChoice* choice) {
    const ClusterSearchResult found = SearchIn(
        planned, {.slowest_s = inner.best.back().prediction.time.step_time_s()},
        true);
    choice->layouts_considered += found.layouts_considered;
    for (const RankedLayout& ranked : found.best) {
      // The orders differ only where both axes do.
      if (ranked.layout.pipeline == 1 || ranked.layout.data == 1) continue;
      Add(ranked, true, choice);
    }
    std::vector<Alternative>& best = choice->best;
    std::stable_sort(best.begin(), best.end(),
                     [](const Alternative& a, const Alternative& b) {
                       return a.prediction.step_time_s <
                              b.prediction.step_time_s;
                     });
    choice->optimality_gap = best.front().prediction.step_time_s /
                                 std::min(inner.floor_s, found.floor_s) -
                             1;
    if (best.size() > inner.best.size()) best.resize(inner.best.size());
  }

  absl::StatusOr<ClusterStep> StepOf(const Alternative& alternative) {
    const bool outermost = alternative.pipeline_outermost;
    return ClusterStepOf(alternative.layout, WithOrder(outermost),
                         cost_.profile(), outermost ? outermost_ : model_);
  }

  // The order of passes and what its gaps hide tell close layouts apart.
  absl::Status SimulateBest(std::vector<Alternative>* best) {
    int64_t num_passes = 0;
    double fastest_s = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < best->size(); ++i) {
      Alternative& alternative = (*best)[i];
      num_passes += NumPasses(alternative.layout);
      const bool is_needed =
          i < kMinimumSimulated ||
          alternative.prediction.step_time_s * kFarBehind < fastest_s;
      if (num_passes > (is_needed ? kMostPasses : kPassBudget)) break;
      ASSIGN_OR_RETURN(const ClusterStep step, StepOf(alternative));
      ASSIGN_OR_RETURN(
          const ClusterSimulation simulation,
          SimulateCluster(step, {.overlap = cost_.profile().overlap,
                                 .keeps_timeline = false}));
      TakeSimulated(simulation, &alternative);
      fastest_s = std::min(fastest_s, simulation.step_time_s);
    }
    SortSimulatedFirst(best);
    return absl::OkStatus();
  }

  void TakeSimulated(const ClusterSimulation& simulation,
                     Alternative* alternative) const {
    Prediction& prediction = alternative->prediction;
    const StepTime& time = prediction.closed_form->time;
    FillTime(space_.model, alternative->layout, cost_, simulation.step_time_s,
             &prediction);
    prediction.bubble_fraction = simulation.bubble_fraction;
    // What is gathered and reduced for every micro-batch is part of its passes.
    const double exposed_data =
        alternative->layout.shards_gradients()
            ? time.exposed_data_s / simulation.step_time_s
            : simulation.exposed_data_fraction;
    prediction.exposed_communication_fraction =
        exposed_data + (time.exposed_tensor_s + time.exposed_context_s +
                        time.exposed_expert_s) /
                           simulation.step_time_s;
    prediction.recompute_fraction = time.recompute_s / simulation.step_time_s;
    alternative->simulated = true;
  }

  static void SortSimulatedFirst(std::vector<Alternative>* best) {
    std::stable_sort(best->begin(), best->end(),
                     [](const Alternative& a, const Alternative& b) {
                       if (a.simulated != b.simulated) return a.simulated;
                       return a.prediction.step_time_s <
                              b.prediction.step_time_s;
                     });
  }

  bool IsExecutable(const Alternative& alternative) const {
    return !alternative.pipeline_outermost &&
           CheckExecutable(space_.model, alternative.layout).ok();
  }

  // Orders the passes of the fastest by what they cost, of those that workers
  // cannot execute: for others planner/list_variant.h does, by instructions.
  // All where the job asks for it.
  absl::Status ListBest(std::vector<Alternative>* best) {
    const bool is_asked_for = PlannedSpace(space_).ListsPasses();
    if (!is_asked_for && space_.constraints.schedule != "auto") {
      return absl::OkStatus();
    }
    const int64_t most_passes = is_asked_for ? kMostPasses : kListedPasses;
    int64_t num_passes = 0;
    size_t num_listed = 0;
    for (Alternative& alternative : *best) {
      const Layout& layout = alternative.layout;
      Prediction& prediction = alternative.prediction;
      if (!alternative.simulated || layout.pipeline == 1 ||
          (!is_asked_for && IsExecutable(alternative))) {
        continue;
      }
      num_passes += NumPasses(layout);
      if (++num_listed > kMostListed || num_passes > most_passes) break;
      ASSIGN_OR_RETURN(const ClusterStep step, StepOf(alternative));
      ASSIGN_OR_RETURN(
          const std::optional<ListedPasses> listed,
          FindListedOrder(
              layout, step,
              {.overlap = cost_.profile().overlap, .keeps_timeline = false},
              memory_limit_,
              is_asked_for ? std::numeric_limits<double>::infinity()
                           : prediction.step_time_s,
              alternative.pipeline_outermost ? outermost_ : model_));
      if (!listed.has_value()) continue;
      alternative.listed_bytes = listed->bytes;
      prediction.step_bytes += listed->more_bytes;
      prediction.closed_form->memory.activations += listed->more_bytes;
      TakeSimulated(listed->simulation, &alternative);
    }
    SortSimulatedFirst(best);
    return absl::OkStatus();
  }

  absl::Status LeaveListed(std::vector<Alternative>* best) const {
    std::erase_if(*best, [](const Alternative& alternative) {
      return alternative.listed_bytes.empty();
    });
    if (!best->empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.schedule is list, but the fastest layouts on ",
        space_.num_devices,
        " devices have no memory for one micro-batch a stage in any order, or "
        "more passes than are ordered (",
        kMostPasses, "); set layout.schedule to auto"));
  }

  // What a user who wants to start today needs to know: the fastest that
  // workers can execute, and where Programs tell them apart, others like it.
  void AddExecutable(PlannedChoice* choice) {
    const bool tells_apart = lowers_ && cost_.HasTables();
    const std::optional<LayoutSpace> executable = ExecutableSpace(space_);
    if (!executable.has_value() ||
        (!tells_apart && std::any_of(choice->best.begin(), choice->best.end(),
                                     [&](const Alternative& alternative) {
                                       return IsExecutable(alternative);
                                     }))) {
      return;
    }
    const ClusterSearchResult found =
        SearchIn(PlannedSpace(*executable),
                 {.num_kept = tells_apart ? kExecutableFinalists : 1}, false);
    choice->layouts_considered += found.layouts_considered;
    for (const RankedLayout& ranked : found.best) {
      if (std::none_of(choice->best.begin(), choice->best.end(),
                       [&](const Alternative& known) {
                         return !known.pipeline_outermost &&
                                known.layout == ranked.layout;
                       })) {
        Add(ranked, false, choice);
      }
    }
  }

  absl::Status ExplainNothingFits(const PlannedSpace& planned) {
    StepEvaluator evaluator(planned, model_);
    const std::optional<RankedLayout> smallest =
        FindSmallestLayout(planned, evaluator);
    CHECK(smallest.has_value());
    const int64_t need = smallest->prediction.memory.total();
    std::string change;
    if (memory_is_the_jobs_) {
      change = absl::StrCat("raise resources.memory_per_device to ",
                            (need + kMiB - 1) / kMiB, " MiB");
    }
    if (const std::optional<int32_t> devices = DevicesThatFit()) {
      absl::StrAppend(&change, change.empty() ? "" : ", or ", "use ", *devices,
                      " devices");
    }
    if (change.empty()) change = "train a smaller model";
    return absl::InvalidArgumentError(absl::StrCat(
        "no layout on ", space_.num_devices, " devices fits into ",
        FormatBytes(memory_limit_), " a device: the smallest, ",
        LayoutToString(smallest->layout), ", needs ", FormatBytes(need), ", ",
        FormatBytes(need - memory_limit_), " more; smallest change: ", change));
  }

  std::optional<int32_t> DevicesThatFit() {
    LayoutSpace more = space_;
    more.nodes.clear();
    for (int64_t factor = 2; factor <= kMostMoreDevices; factor *= 2) {
      const int64_t devices = factor * space_.num_devices;
      if (devices > std::numeric_limits<int32_t>::max()) return std::nullopt;
      more.num_devices = static_cast<int32_t>(devices);
      const PlannedSpace planned(more);
      StepEvaluator evaluator(planned, model_);
      if (AnyLayoutFits(planned, memory_limit_, evaluator)) {
        return more.num_devices;
      }
    }
    return std::nullopt;
  }

  const LayoutSpace& space_;
  const int64_t memory_limit_;
  const bool simulates_;
  const bool lowers_;
  const bool memory_is_the_jobs_;
  const CostModel& cost_;
  StepModel& model_;
  StepModel& outermost_;
};

}  // namespace

absl::Status CheckFormat(GemmFormat format, const HardwareProfile& profile) {
  const DeviceSpec& device = profile.device;
  const bool is_fp8 = format == GemmFormat::kFloat8;
  if (format == GemmFormat::kAsStored ||
      (is_fp8 ? device.fp8_flops_per_s : device.fp4_flops_per_s) > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      device.name, " has no ", is_fp8 ? "8" : "4", "-bit products: device.",
      is_fp8 ? "fp8" : "fp4", "_flops_per_s of hardware profile '",
      profile.name, "' is 0"));
}

absl::StatusOr<PlannedChoice> FindPlannedLayouts(const SearchInput& input,
                                                 const CostModel& cost,
                                                 int64_t memory_limit) {
  absl::StatusOr<StepModel> model =
      StepModel::Create(input.job.model, cost.profile(), WithOrder(false));
  if (!model.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(model.status().message()),
        "; to plan over all axes name a shipped profile with --profile, or "
        "merge one with what millrace profile measured (docs/profile.md)"));
  }
  ASSIGN_OR_RETURN(
      StepModel outermost,
      StepModel::Create(input.job.model, cost.profile(), WithOrder(true)));
  LayoutSpace space = LayoutSpaceOf(input.job, input.num_devices);
  const Precision priced = cost.profile().precision;
  if (space.precision != Precision::kBfloat16 ||
      priced != Precision::kBfloat16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.precision is ", PrecisionName(space.precision),
        " and hardware profile '", cost.profile().name, "' is of ",
        PrecisionName(priced),
        ", but plans over all axes are of products of bf16, fp8 and fp4; set "
        "training.precision to one of these, and name a profile of bf16"));
  }
  if (const absl::Status status =
          CheckFormat(space.gemm_format, cost.profile());
      !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.precision is ", input.job.training.precision, ", but ",
        status.message(), "; set training.precision to bf16",
        CheckFormat(GemmFormat::kFloat8, cost.profile()).ok() ? " or fp8" : "",
        ", or name a profile of devices that have them"));
  }
  space.nodes = input.nodes;
  return PlannedSearch(space, memory_limit, input, cost, *model, outermost)
      .Run();
}

}  // namespace millrace
