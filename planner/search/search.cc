#include "planner/search/search.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "planner/job/executable.h"
#include "planner/job/layout_space.h"
#include "planner/lower/program_size.h"
#include "planner/profile/host_size.h"
#include "planner/program/copy_engines.h"
#include "planner/search/closed_form_evaluator.h"
#include "planner/search/closed_form_finalists.h"
#include "planner/search/extrapolation.h"
#include "planner/search/instruction_finalists.h"
#include "planner/search/layout_tree.h"
#include "planner/search/nothing_fits.h"
#include "planner/search/pass_finalists.h"
#include "planner/search/plan_choice.h"
#include "planner/search/program_prediction.h"
#include "planner/search/search_budget.h"
#include "planner/search/snapshot_plan.h"
#include "planner/search/standby_plan.h"
#include "planner/search/variants.h"

namespace millrace {
namespace {

int64_t MemoryLimit(const SearchInput& input, const CostModel& cost) {
  const int64_t device_bytes =
      input.job.resources.memory_per_device_bytes.value_or(
          input.device_memory_bytes > 0 ? input.device_memory_bytes
                                        : cost.profile().device_memory_bytes);
  return MemoryBesideStandby(input.job, cost.profile(), device_bytes);
}

// Whether the profile can price what the job asks for.
absl::Status CheckPrices(const SearchInput& input, const LayoutSpace& space,
                         const CostModel& cost) {
  const HardwareProfile& profile = cost.profile();
  if (!input.allows_plan_only) {
    return CheckProfile({.data = space.num_devices,
                         .precision = space.precision,
                         .gemm_format = space.gemm_format},
                        cost);
  }
  if (space.precision != profile.precision) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.precision is ", input.job.training.precision,
        ", but hardware profile '", profile.name, "' is of ",
        PrecisionName(profile.precision), "; set training.precision to ",
        PrecisionName(profile.precision),
        profile.precision == Precision::kBfloat16 ? ", fp8 or fp4" : "",
        ", or name a profile of ", PrecisionName(space.precision),
        " with --profile"));
  }
  const absl::Status float8 = CheckFormat(GemmFormat::kFloat8, profile);
  if (space.model.attention_format == AttentionFormat::kFloat8 &&
      profile.device.is_given() && !float8.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.attention is fp8, but ", float8.message(),
        "; set training.attention to bf16, or name a profile of devices that "
        "have them"));
  }
  const absl::Status format = CheckFormat(space.gemm_format, profile);
  if (format.ok()) return format;
  return absl::InvalidArgumentError(absl::StrCat(
      "training.precision is ", input.job.training.precision, ", but ",
      format.message(), "; set training.precision to bf16",
      float8.ok() ? " or fp8" : "",
      ", or name a profile of devices that have them"));
}

// Neighbours that share the fastest links.
int32_t DevicesPerNode(const HardwareProfile& profile) {
  return profile.network.empty() ? profile.ranks_per_host
                                 : profile.network.front().devices;
}

// The layouts that may be chosen. Layouts that are to be lowered have few
// enough micro-batches for that.
SearchScope ScopeOf(const SearchInput& input, const LayoutSpace& space,
                    int64_t most_microbatches, const CostModel& cost) {
  const bool lowers = input.simulates && input.lowers &&
                      CheckProfile({.precision = space.precision,
                                    .gemm_format = space.gemm_format},
                                   cost)
                          .ok();
  std::optional<LayoutSpace> executable = ExecutableSpace(space);
  if (!input.allows_plan_only) {
    // Without executable layouts the search says so and looks no further.
    LayoutSpace all = std::move(executable).value_or(space);
    if (input.least_devices > 0) {
      all.least_devices = input.least_devices;
    } else {
      all.constraints.devices = space.num_devices;
    }
    return {.all = LayoutTree(std::move(all), most_microbatches),
            .simulates = input.simulates,
            .lowers = lowers,
            .stop = input.stop};
  }
  SearchScope scope{.all = LayoutTree(space),
                    .has_plan_only = true,
                    .simulates = input.simulates,
                    .lowers = lowers,
                    .stop = input.stop};
  if (executable.has_value()) {
    scope.executable.emplace(
        *executable,
        lowers ? most_microbatches : std::numeric_limits<int64_t>::max());
  }
  return scope;
}

class Search {
 public:
  // Borrows all.
  Search(const SearchInput& input, const LayoutSpace& space,
         const CostModel& cost, StepModel& model, StepModel& outermost)
      : input_(input),
        space_(space),
        cost_(cost),
        memory_limit_(MemoryLimit(input, cost)),
        most_microbatches_(MicrobatchBoundsOf(space.model, {}).too_many),
        copy_engines_(CopyEngineChoiceOf(input.job.resources, cost.profile())),
        scope_(ScopeOf(input, space, most_microbatches_, cost)),
        by_closed_form_(scope_, memory_limit_, cost, model, outermost),
        by_passes_(scope_.all, memory_limit_, cost, model, outermost,
                   input.stop),
        by_instructions_(
            scope_.all.space(), memory_limit_, cost, model,
            input.num_threads > 0 ? input.num_threads : NumComputeThreads(),
            input.stop),
        model_(model) {}
  Search(const Search&) = delete;  // Its parts refer to each other.
  Search& operator=(const Search&) = delete;

  absl::StatusOr<Plan> Run() {
    if (!scope_.has_plan_only && input_.least_devices == 0) {
      RETURN_IF_ERROR(CheckLayouts(input_.job, input_.num_devices));
    } else if (!HasLayout(scope_.all)) {
      return ExplainEmptyTree(scope_.all);
    }
    RETURN_IF_ERROR(FindChoice());
    return MakePlan();
  }

 private:
  std::optional<size_t> Choice() const {
    return ChosenOf(finalists_, scope_.has_plan_only,
                    scope_.all.ListsPasses() && scope_.simulates);
  }

  // Fills `finalists_` until one of them can be chosen. The closed form may be
  // off by some percent of the memory, so the first round leaves it to Programs
  // what fits. Where none of them does, the next rounds leave them more room.
  absl::Status FindChoice() {
    double share = 1 + kSearchBudget.memory_error;
    while (share > kSearchBudget.least_memory_share) {
      std::vector<Finalist> found = by_closed_form_.Find(share);
      RETURN_IF_ERROR(CheckNotStopped(input_.stop));
      if (found.empty()) break;
      LeaveOutCloseUneven(&found);
      if (!AddNew(std::move(found))) {
        constexpr double kUntilOthersCome = 0.95;
        share *= kUntilOthersCome;
        continue;
      }
      RETURN_IF_ERROR(Simulate());
      if (Choice().has_value()) return absl::OkStatus();
      RETURN_IF_ERROR(CheckListed());
      if (!ForbidTooManyMicrobatches()) share = ShareForMoreRoom(share);
    }
    return TrySmallest();
  }

  // Adds the finalists that are not known yet. Returns whether there are any.
  bool AddNew(std::vector<Finalist> found) {
    bool adds = false;
    for (Finalist& finalist : found) {
      if (copy_engines_ == CopyEngineChoice::kAlways &&
          finalist.can_be_lowered) {
        finalist.layout.copy_engines = CopyEngineUseOf(finalist.layout);
      }
      const bool is_known =
          absl::c_any_of(finalists_, [&](const Finalist& known) {
            return known.pipeline_outermost == finalist.pipeline_outermost &&
                   known.layout == finalist.layout;
          });
      if (is_known) continue;
      finalists_.push_back(std::move(finalist));
      adds = true;
    }
    return adds;
  }

  // Leaves out uneven layouts that would be lowered, unless they are faster
  // than the even ones by more than the closed form's error. They are many, and
  // take long to lower.
  static void LeaveOutCloseUneven(std::vector<Finalist>* found) {
    double least_even_s = std::numeric_limits<double>::infinity();
    for (const Finalist& finalist : *found) {
      if (!finalist.can_be_lowered || finalist.layout.is_uneven()) continue;
      least_even_s = std::min(least_even_s, finalist.closed_form.step_time_s);
    }
    std::erase_if(*found, [&](const Finalist& finalist) {
      return finalist.can_be_lowered && finalist.layout.is_uneven() &&
             finalist.closed_form.step_time_s *
                     (1 + kSearchBudget.closed_form_error) >
                 least_even_s;
    });
  }

  absl::Status Simulate() {
    if (!scope_.simulates) return absl::OkStatus();
    const bool all_can_be_lowered = absl::c_all_of(
        finalists_, [](const Finalist& f) { return f.can_be_lowered; });
    if (!all_can_be_lowered) {
      RETURN_IF_ERROR(by_passes_.Simulate(&finalists_));
      const Finalist& fastest = finalists_.front();
      if (fastest.passes.has_value() &&
          by_closed_form_.AddCloseBehind(fastest.passes->step_time_s,
                                         &finalists_)) {
        RETURN_IF_ERROR(by_passes_.Simulate(&finalists_));
      }
      RETURN_IF_ERROR(by_passes_.List(&finalists_));
    }
    if (!scope_.lowers) return absl::OkStatus();
    RETURN_IF_ERROR(by_instructions_.PriceAll(
        /*until_one_fits=*/input_.is_urgent, &finalists_));
    if (input_.is_urgent && !scope_.all.ListsPasses()) return absl::OkStatus();
    RETURN_IF_ERROR(AddListScheduled(scope_.all.space(), cost_, memory_limit_,
                                     input_.stop, &by_instructions_,
                                     &finalists_));
    if (copy_engines_ == CopyEngineChoice::kIfFaster) {
      RETURN_IF_ERROR(
          AddCopyEngines(space_.model, cost_, &by_instructions_, &finalists_));
    }
    return absl::OkStatus();
  }

  // InvalidArgument if layouts fit, but none can have the list scheduling that
  // the job asks for.
  absl::Status CheckListed() const {
    if (!scope_.all.ListsPasses() ||
        absl::c_none_of(finalists_, [](const Finalist& finalist) {
          return finalist.fits && !finalist.is_too_large &&
                 finalist.finest().model != PriceModel::kClosedForm;
        })) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.schedule is list, but none of the fastest layouts on ",
        space_.num_devices,
        " devices can have it: it takes two stages at least, ZeRO 0 or 1, "
        "memory for one micro-batch a stage, and at most ",
        kSearchBudget.most_passes,
        " passes a step; set layout.schedule to auto"));
  }

  // Leaves out layouts with as many micro-batches as the finalists whose
  // Programs are too large. Returns whether there were any.
  bool ForbidTooManyMicrobatches() {
    bool forbids = false;
    for (const Finalist& finalist : finalists_) {
      if (!finalist.is_too_large ||
          finalist.layout.most_microbatches() > most_microbatches_) {
        continue;
      }
      most_microbatches_ = finalist.layout.most_microbatches() - 1;
      forbids = true;
    }
    if (forbids) scope_ = ScopeOf(input_, space_, most_microbatches_, cost_);
    return forbids;
  }

  // The share of the memory that leaves the Programs the room which the best of
  // them lacked.
  double ShareForMoreRoom(double share) const {
    constexpr double kLeastChange = 0.99;
    const auto limit = static_cast<double>(memory_limit_);
    const double excess =
        static_cast<double>(by_instructions_.least_excess_bytes());
    return share * std::min(kLeastChange, limit / (limit + excess));
  }

  // The layout that needs the least memory by the closed form may still fit by
  // its Programs. If not, says why nothing fits.
  absl::Status TrySmallest() {
    const bool is_for_run = !scope_.has_plan_only;
    StepEvaluator evaluator(scope_.all, model_);
    const std::optional<RankedLayout> smallest =
        FindSmallestLayout(scope_.all, evaluator, input_.stop);
    RETURN_IF_ERROR(CheckNotStopped(input_.stop));
    if (is_for_run && by_instructions_.least_excess_bytes() == 0) {
      const LayoutTree any_size(scope_.all.space());
      StepEvaluator any_evaluator(any_size, model_);
      if (AnyLayoutFits(any_size, memory_limit_, any_evaluator, input_.stop)) {
        return by_instructions_.too_large().ok()
                   ? ExplainLargeBatch(scope_.all.space(), memory_limit_)
                   : absl::InvalidArgumentError(
                         by_instructions_.too_large().message());
      }
    }
    if (!smallest.has_value()) {
      return ExplainLargeBatch(scope_.all.space(), memory_limit_);
    }
    Finalist finalist = by_closed_form_.FinalistOf(*smallest, false);
    if (finalist.can_be_lowered) {
      RETURN_IF_ERROR(by_instructions_.Price(&finalist));
      finalists_.push_back(finalist);
      if (Choice().has_value()) return absl::OkStatus();
    }
    return ExplainNothingFits(
        scope_.all.space(), finalist.layout,
        finalist.closed_form.memory_bytes(), memory_limit_,
        input_.job.resources.memory_per_device_bytes.has_value(), model_,
        input_.stop);
  }

  absl::StatusOr<Plan> MakePlan() {
    if (scope_.simulates && scope_.all.ListsPasses()) {
      std::erase_if(finalists_, [](const Finalist& f) { return !IsListed(f); });
    }
    std::optional<LoweredStep> lowered;
    size_t chosen_idx = *Choice();
    while (finalists_[chosen_idx].instructions.has_value()) {
      ASSIGN_OR_RETURN(lowered,
                       by_instructions_.Lower(&finalists_[chosen_idx]));
      if (finalists_[chosen_idx].fits) break;
      lowered.reset();
      if (!Choice().has_value()) RETURN_IF_ERROR(TrySmallest());
      chosen_idx = *Choice();
    }
    if (input_.simulates && input_.lowers && !scope_.all.ListsPasses()) {
      AddNew(by_closed_form_.FasterWithMoreMemory(
          finalists_[chosen_idx].closed_form.closed_form->time.step_time_s()));
    }
    const Finalist& chosen = finalists_[chosen_idx];
    Plan plan = PlanOf(space_, finalists_, chosen_idx, memory_limit_,
                       std::move(lowered));
    if (plan.programs != nullptr) {
      ASSIGN_OR_RETURN(plan.program_hashes,
                       HashesOf(space_.model, *plan.programs, input_.stop));
    }
    plan.layouts_considered = by_closed_form_.layouts_considered();
    // The closed form does not price the orders of list scheduling.
    if (!scope_.all.ListsPasses()) {
      plan.optimality_gap = by_closed_form_.optimality_gap();
    }
    if (plan.layout.recompute != Recompute::kNone) {
      plan.recompute_prices = BestFirst(model_.PriceRecompute(plan.layout));
    }
    PlanFreeMemory(&plan);
    AddWarnings(chosen, &plan);
    return plan;
  }

  // Standby processes get the memory that the layout leaves free first, and
  // snapshots are staged in the rest.
  void PlanFreeMemory(Plan* plan) const {
    if (plan->programs == nullptr) return;
    const HardwareProfile& profile = cost_.profile();
    const JobSpec& job = input_.job;
    plan->keeps_standbys = KeepsStandbys(
        job, profile, plan->prediction.memory_bytes(), memory_limit_);
    int64_t left_bytes = memory_limit_;
    // The limit leaves room for those that the job asks for.
    if (plan->keeps_standbys && job.fault.standby_workers == "auto") {
      left_bytes -= StandbyBytes(job, profile);
    }
    plan->snapshots = PlanSnapshotsOf(job, *plan->programs, plan->timeline,
                                      cost_, left_bytes);
    if (plan->snapshots.has_value()) {
      plan->prediction.staged_bytes = plan->snapshots->staged_bytes;
    }
  }

  void AddWarnings(const Finalist& chosen, Plan* plan) const {
    if (chosen.is_too_large) {
      plan->warnings.push_back(absl::StrCat(
          "no run takes this plan: ", by_instructions_.too_large().message()));
    }
    if (plan->programs != nullptr) {
      if (const std::vector<std::string> kinds =
              cost_.KindsWithoutRows(*plan->programs);
          !kinds.empty()) {
        plan->warnings.push_back(absl::StrCat(
            "hardware profile '", cost_.profile().name, "' has no row of ",
            absl::StrJoin(kinds, ", "),
            ", which others stand in for; measure with millrace profile JOB"));
      }
      SayWhatWasExtrapolated(*plan->programs, cost_, plan);
    }
    if (!input_.job.model_approximates.empty()) {
      plan->warnings.push_back(absl::StrCat(
          "the model leaves out some of the one that it stands for, so what is "
          "trained of it is another model (model.approximates): ",
          input_.job.model_approximates));
    }
  }

  const SearchInput& input_;
  const LayoutSpace& space_;
  const CostModel& cost_;
  const int64_t memory_limit_;
  int64_t most_microbatches_;  // In a step whose Programs may be lowered.
  const CopyEngineChoice copy_engines_;
  SearchScope scope_;
  ClosedFormFinalists by_closed_form_;
  PassFinalists by_passes_;
  InstructionFinalists by_instructions_;
  StepModel& model_;
  std::vector<Finalist> finalists_;
};

}  // namespace

bool IsPlanOnPaper(const JobSpec& job, int32_t num_devices,
                   const HardwareProfile& profile) {
  const LayoutSpace space = LayoutSpaceOf(job, num_devices);
  // All devices of a host are priced by rows if some were measured.
  const int32_t num_priced_by_rows = WasMeasuredOnOneHost(profile)
                                         ? profile.ranks_per_host
                                         : profile.provenance.num_ranks;
  return !ExecutableSpace(space).has_value() || profile.gemms.empty() ||
         (num_devices > num_priced_by_rows && profile.device.is_given() &&
          !profile.network.empty());
}

absl::Status CheckFormat(GemmFormat format, const HardwareProfile& profile) {
  const DeviceSpec& device = profile.device;
  const bool is_fp8 = IsFloat8(format);
  if (format == GemmFormat::kAsStored ||
      (is_fp8 ? device.fp8_flops_per_s : device.fp4_flops_per_s) > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      device.name, " has no ", is_fp8 ? "8" : "4", "-bit products: device.",
      is_fp8 ? "fp8" : "fp4", "_flops_per_s of hardware profile '",
      profile.name, "' is 0"));
}

absl::StatusOr<Plan> FindPlan(const SearchInput& input, const CostModel& cost) {
  const double start_s = MonotonicSeconds();
  LayoutSpace space = LayoutSpaceOf(input.job, input.num_devices);
  space.devices_per_node = DevicesPerNode(cost.profile());
  RETURN_IF_ERROR(CheckPrices(input, space, cost));
  ASSIGN_OR_RETURN(StepModel model, StepModel::Create(space.model, cost,
                                                      ImplementationOf(false)));
  RETURN_IF_ERROR(model.CheckPrices({.data = space.num_devices,
                                     .precision = space.precision,
                                     .gemm_format = space.gemm_format}));
  StepModel outermost = model.WithPipelineOutermost();
  space.recomputes = [&model](const Layout& layout) {
    return model.Recomputes(layout);
  };
  absl::StatusOr<Plan> found =
      Search(input, space, cost, model, outermost).Run();
  // A search that was stopped may say that nothing fits.
  RETURN_IF_ERROR(CheckNotStopped(input.stop));
  ASSIGN_OR_RETURN(Plan plan, std::move(found));
  plan.search_seconds = MonotonicSeconds() - start_s;
  return plan;
}

}  // namespace millrace
