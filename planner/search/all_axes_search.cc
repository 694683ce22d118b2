#include "planner/search/all_axes_search.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "planner/cost/closed_form.h"
#include "planner/job/layout_space.h"
#include "planner/search/all_axes_space.h"
#include "planner/search/branch_and_bound.h"
#include "planner/search/closed_form_evaluator.h"
#include "planner/search/pass_finalists.h"
#include "planner/search/prediction.h"
#include "planner/search/search_budget.h"

namespace millrace {
namespace {

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
    if (planned.ListsPasses()) choice.optimality_gap.reset();
    if (simulates_) {
      PassFinalists finalists(planned, memory_limit_, cost_, model_,
                              outermost_);
      RETURN_IF_ERROR(finalists.Simulate(&choice.best));
      if (AddCloseBehind(planned, limits, found, &choice)) {
        RETURN_IF_ERROR(finalists.Simulate(&choice.best));
      }
      const bool passes_decide = !lowers_ || !cost_.HasTables();
      RETURN_IF_ERROR(finalists.List(passes_decide, &choice.best));
      if (planned.ListsPasses()) {
        RETURN_IF_ERROR(finalists.LeaveListed(&choice.best));
      }
    }
    if (lowers_ && !planned.ListsPasses()) {
      ASSIGN_OR_RETURN(choice.lowered,
                       PriceByInstructions(space_.model, cost_, memory_limit_,
                                           &choice.best));
    }
    SayWhyOthersLost(&choice.best);
    const Layout& best = choice.best.front().layout;
    if (best.recompute != Recompute::kNone) {
      choice.recompute_prices = BestFirst(model_.PriceRecompute(best));
    }
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

  // Whether the closed form has more layouts for simulation than were kept: it
  // does not see how uneven chunks hold each other up, which may put those that
  // have none behind. Adds what it says to be faster than what simulation says
  // of all that were kept.
  bool AddCloseBehind(const PlannedSpace& planned,
                      const ClusterSearchLimits& limits,
                      const ClusterSearchResult& found, PlannedChoice* choice) {
    const Alternative& fastest = choice->best.front();
    const double fastest_s = fastest.prediction.step_time_s;
    if (!fastest.simulated ||
        found.best.size() < static_cast<size_t>(limits.num_kept) ||
        found.best.back().prediction.time.step_time_s() >= fastest_s) {
      return false;
    }
    const ClusterSearchResult more = SearchIn(
        planned,
        {.num_kept = kSearchBudget.kept_at_second_look, .slowest_s = fastest_s},
        false);
    choice->layouts_considered += more.layouts_considered;
    bool adds = false;
    for (const RankedLayout& ranked : more.best) {
      adds |= AddUnlessKnown(ranked, choice);
    }
    return adds;
  }

  bool AddUnlessKnown(const RankedLayout& ranked, PlannedChoice* choice) const {
    const bool is_known = std::any_of(choice->best.begin(), choice->best.end(),
                                      [&](const Alternative& known) {
                                        return !known.pipeline_outermost &&
                                               known.layout == ranked.layout;
                                      });
    if (!is_known) Add(ranked, false, choice);
    return !is_known;
  }

  // What a user who wants to start today needs to know: the fastest that
  // workers can execute, and where Programs tell them apart, others like it.
  void AddExecutable(PlannedChoice* choice) {
    const bool tells_apart = lowers_ && cost_.HasTables();
    const std::optional<LayoutSpace> executable = ExecutableSpace(space_);
    if (!executable.has_value() ||
        (!tells_apart && std::any_of(choice->best.begin(), choice->best.end(),
                                     [&](const Alternative& alternative) {
                                       return IsExecutable(space_.model,
                                                           alternative);
                                     }))) {
      return;
    }
    const ClusterSearchResult found = SearchIn(
        PlannedSpace(*executable),
        {.num_kept = tells_apart ? kSearchBudget.executable_finalists : 1},
        false);
    choice->layouts_considered += found.layouts_considered;
    for (const RankedLayout& ranked : found.best) {
      AddUnlessKnown(ranked, choice);
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
    for (int64_t factor = 2; factor <= kSearchBudget.most_times_the_devices;
         factor *= 2) {
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
  if (!cost.HasSheet()) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(SheetTimes::Create(cost.profile()).status().message()),
        "; to plan over all axes name a shipped profile with --profile, or "
        "merge one with what millrace profile measured (docs/profile.md)"));
  }
  absl::StatusOr<StepModel> model =
      StepModel::Create(input.job.model, cost, ImplementationOf(false));
  RETURN_IF_ERROR(model.status());
  ASSIGN_OR_RETURN(
      StepModel outermost,
      StepModel::Create(input.job.model, cost, ImplementationOf(true)));
  LayoutSpace space = LayoutSpaceOf(input.job, input.num_devices);
  const Precision priced = cost.profile().precision;
  if (space.precision != Precision::kBfloat16 ||
      priced != Precision::kBfloat16) {
    std::vector<std::string> changes;
    if (space.precision != Precision::kBfloat16) {
      changes.push_back("set training.precision to one of these");
    }
    if (priced != Precision::kBfloat16) {
      changes.push_back("name a profile of bf16 with --profile");
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "training.precision is ", PrecisionName(space.precision),
        " and hardware profile '", cost.profile().name, "' is of ",
        PrecisionName(priced),
        ", but plans over all axes are of products of bf16, fp8 and fp4; ",
        absl::StrJoin(changes, ", and ")));
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
  space.recomputes = [&model](const Layout& layout) {
    return model->Recomputes(layout);
  };
  return PlannedSearch(space, memory_limit, input, cost, *model, outermost)
      .Run();
}

}  // namespace millrace
