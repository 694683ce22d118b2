#include "planner/search/search.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "planner/cost/recompute_ladder.h"
#include "planner/job/layout_space.h"
#include "planner/lower/lower.h"
#include "planner/lower/program_size.h"
#include "planner/search/all_axes_plan.h"
#include "planner/search/candidate_variants.h"
#include "planner/search/candidates.h"
#include "planner/search/copy_engine_choice.h"
#include "planner/search/extrapolation.h"
#include "planner/search/large_batch.h"
#include "planner/search/prediction.h"
#include "planner/search/program_prediction.h"
#include "planner/search/variant_choice.h"

namespace millrace {
namespace {

int64_t MemoryLimit(const SearchInput& input, const CostModel& cost) {
  return input.job.resources.memory_per_device_bytes.value_or(
      input.device_memory_bytes > 0 ? input.device_memory_bytes
                                    : cost.profile().device_memory_bytes);
}

// Among what workers can execute.
class Search {
 public:
  Search(const SearchInput& input, const CostModel& cost)
      : input_(input),
        cost_(cost),
        candidates_(input, cost, MemoryLimit(input, cost)) {}

  absl::StatusOr<Plan> Run() {
    RETURN_IF_ERROR(CheckLayouts(input_.job, input_.num_devices));
    const CopyEngineChoice copy_engines =
        CopyEngineChoiceOf(input_.job.resources, cost_.profile());
    std::vector<Layout> layouts = EnumerateLayouts(candidates_.space());
    RETURN_IF_ERROR(DropHopelessLayouts(candidates_.space(),
                                        candidates_.memory_limit(), &layouts));
    if (copy_engines == CopyEngineChoice::kAlways) UseCopyEngines(&layouts);
    RETURN_IF_ERROR(candidates_.Consider(layouts));
    RETURN_IF_ERROR(ConsiderSmaller(&candidates_));
    RETURN_IF_ERROR(ConsiderListed(cost_, &candidates_));
    if (copy_engines == CopyEngineChoice::kIfFaster) {
      RETURN_IF_ERROR(ConsiderCopyEngines(&candidates_));
    }
    const Candidate* chosen = candidates_.Fastest();
    if (chosen == nullptr) return ExplainNothingFits();
    return MakePlan(*chosen);
  }

 private:
  absl::StatusOr<Plan> MakePlan(const Candidate& chosen) {
    Plan plan;
    plan.layout = chosen.layout;
    plan.prediction = chosen.prediction;
    plan.layouts_considered = static_cast<int64_t>(candidates_.all().size());
    if (plan.layout.recompute != Recompute::kNone) {
      plan.recompute_prices =
          BestFirst(PriceRecompute(input_.job.model, plan.layout, cost_));
    }
    // The Programs of all candidates would be hundreds of megabytes; lowering
    // one layout again is cheap.
    ASSIGN_OR_RETURN(std::vector<Program> lowered,
                     BuildTrainingPrograms(input_.job.model, chosen.layout));
    TakePrograms(std::move(lowered), &plan);
    const std::vector<Program>& programs = *plan.programs;
    if (const std::vector<std::string> kinds = cost_.KindsWithoutRows(programs);
        !kinds.empty()) {
      plan.warnings.push_back(absl::StrCat(
          "hardware profile '", cost_.profile().name, "' has no row of ",
          absl::StrJoin(kinds, ", "),
          ", which others stand in for; measure with millrace profile JOB"));
    }
    SayWhatWasExtrapolated(programs, cost_, &plan);
    ASSIGN_OR_RETURN(plan.timeline, SimulatePrograms(programs, cost_));

    std::vector<const Candidate*> losers;
    plan.all_simulated = true;
    for (const Candidate& candidate : candidates_.all()) {
      if (candidate.fits && !candidate.simulated) plan.all_simulated = false;
      if (&candidate != &chosen) losers.push_back(&candidate);
    }
    std::stable_sort(losers.begin(), losers.end(),
                     [](const Candidate* a, const Candidate* b) {
                       if (a->fits != b->fits) return a->fits;
                       return a->prediction.step_time_s <
                              b->prediction.step_time_s;
                     });
    const Prediction estimated = candidates_.Estimated(chosen.layout);
    plan.optimality_gap = OptimalityGap(estimated.step_time_s);
    for (const Candidate* loser : losers) {
      if (loser->is_too_large) continue;
      Alternative alternative{.layout = loser->layout,
                              .fits = loser->fits,
                              .simulated = loser->simulated,
                              .prediction = loser->prediction};
      SayWhyItLost(loser->simulated ? chosen.prediction : estimated,
                   candidates_.memory_limit(),
                   loser->simulated ? "" : kByClosedForm, &alternative);
      plan.alternatives.push_back(std::move(alternative));
    }
    return plan;
  }

  // By what share the fastest of the candidates that were not simulated beats
  // the chosen one's closed form; those that were have lost to it.
  double OptimalityGap(double chosen_s) const {
    double fastest_s = chosen_s;
    for (const Candidate& candidate : candidates_.all()) {
      if (candidate.simulated || !candidate.fits) continue;
      fastest_s = std::min(fastest_s, candidate.prediction.step_time_s);
    }
    return chosen_s / fastest_s - 1;
  }

  // Only reached when every candidate was lowered, so all have their memory.
  absl::Status ExplainNothingFits() const {
    const Candidate& smallest = *std::min_element(
        candidates_.all().begin(), candidates_.all().end(),
        [](const Candidate& a, const Candidate& b) {
          return std::make_tuple(a.is_too_large, a.prediction.memory_bytes()) <
                 std::make_tuple(b.is_too_large, b.prediction.memory_bytes());
        });
    if (smallest.is_too_large) {
      return absl::InvalidArgumentError(candidates_.too_large().message());
    }
    const int64_t need = smallest.prediction.memory_bytes();
    std::string change;
    if (input_.job.resources.memory_per_device_bytes.has_value()) {
      change = absl::StrCat("raise resources.memory_per_device to ",
                            (need + kMiB - 1) / kMiB, " MiB");
    }
    if (const std::optional<int32_t> devices = DevicesThatFit()) {
      absl::StrAppend(&change, change.empty() ? "" : ", or ", "use ", *devices,
                      " devices");
    }
    if (change.empty()) change = "train a smaller model";
    return absl::InvalidArgumentError(absl::StrCat(
        "no layout on ", input_.num_devices, " devices fits into ",
        FormatBytes(candidates_.memory_limit()), " a device: the smallest, ",
        LayoutToString(smallest.layout), ", needs ", FormatBytes(need), ", ",
        FormatBytes(need - candidates_.memory_limit()),
        " more; smallest change: ", change,
        candidates_.too_large().ok()
            ? ""
            : absl::StrCat("; of smaller micro-batches ",
                           candidates_.too_large().message())));
  }

  // The least power-of-two multiple of the devices on which some layout fits.
  // Small micro-batches need the least, so only those of one are tried.
  std::optional<int32_t> DevicesThatFit() const {
    for (int32_t factor = 2; factor <= 16; factor *= 2) {
      LayoutSpace more = candidates_.space();
      more.num_devices = input_.num_devices * factor;
      if (!more.constraints.micro_batch) more.constraints.micro_batch = 1;
      for (const Layout& layout : EnumerateLayouts(more)) {
        if (layout.num_microbatches >
            MicrobatchBoundsOf(more.model, layout).too_many) {
          continue;
        }
        const std::vector<Layout> smaller = SmallerLayouts(more, layout);
        const absl::StatusOr<std::vector<Program>> programs =
            BuildTrainingPrograms(input_.job.model,
                                  smaller.empty() ? layout : smaller.back());
        if (!programs.ok()) continue;
        Prediction prediction;
        FillMemory(*programs, cost_.profile().memory_overhead, &prediction);
        if (prediction.memory_bytes() <= candidates_.memory_limit()) {
          return more.num_devices;
        }
      }
    }
    return std::nullopt;
  }

  const SearchInput& input_;
  const CostModel& cost_;
  Candidates candidates_;
};

// Warns if the job's model stands for another one.
void WarnOfApproximation(const JobSpec& job, Plan* plan) {
  if (job.model_approximates.empty()) return;
  plan->warnings.push_back(absl::StrCat(
      "the model leaves out some of the one that it stands for, so what is "
      "trained of it is another model (model.approximates): ",
      job.model_approximates));
}

}  // namespace

bool NeedsAllAxes(const JobSpec& job, int32_t num_devices,
                  const HardwareProfile& profile) {
  const LayoutSpace space = LayoutSpaceOf(job, num_devices);
  return !ExecutableSpace(space).has_value() || profile.gemms.empty() ||
         (num_devices > profile.provenance.num_ranks &&
          profile.device.is_given() && !profile.network.empty());
}

absl::StatusOr<Plan> FindPlan(const SearchInput& input, const CostModel& cost) {
  const double start_s = MonotonicSeconds();
  ASSIGN_OR_RETURN(Plan plan,
                   input.all_axes
                       ? PlanAllAxes(input, cost, MemoryLimit(input, cost))
                       : Search(input, cost).Run());
  plan.search_seconds = MonotonicSeconds() - start_s;
  WarnOfApproximation(input.job, &plan);
  return plan;
}

}  // namespace millrace
