#include "planner/search/candidate_variants.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/job/layout_space.h"
#include "planner/program/copy_engines.h"
#include "planner/search/copy_engine_choice.h"
#include "planner/search/listed_variant.h"
#include "planner/search/search_budget.h"

namespace millrace {
namespace {

// Whether two layouts differ in what is computed again alone.
bool DifferInRecompute(Layout a, const Layout& b) {
  a.recompute = b.recompute;
  a.recompute_by_stage = b.recompute_by_stage;
  return a == b;
}

std::vector<Layout> SmallerThanWhatDoesNotFit(const Candidates& candidates) {
  std::vector<Layout> layouts;
  for (const Candidate& candidate : candidates.all()) {
    if (candidate.fits || candidate.is_too_large) continue;
    for (const Layout& smaller :
         SmallerLayouts(candidates.space(), candidate.layout)) {
      layouts.push_back(smaller);
    }
  }
  return layouts;
}

// The least with which a stage's own Program fits, of what was lowered of
// layouts that differ in what is computed again.
std::optional<Recompute> LeastOfStage(const Candidates& candidates,
                                      const Candidate& plain, size_t stage) {
  for (const StageRecomputes& again :
       AllowedRecomputes(candidates.space(), plain.layout)) {
    for (const Candidate& other : candidates.all()) {
      if (stage < other.stage_bytes.size() &&
          other.stage_bytes[stage] <= candidates.memory_limit() &&
          other.layout.recompute == again.recompute &&
          DifferInRecompute(other.layout, plain.layout)) {
        return again.recompute;
      }
    }
  }
  return std::nullopt;
}

std::vector<Layout> FittedByStage(const Candidates& candidates) {
  std::vector<Layout> layouts;
  const LayoutSpace& space = candidates.space();
  if (!LeavesStagesOpen(space.constraints.recompute)) return layouts;
  for (const Candidate& plain : candidates.all()) {
    const bool is_lowered = !plain.stage_bytes.empty();
    if (plain.fits || !is_lowered || plain.layout.pipeline == 1 ||
        plain.layout.recompute !=
            AllowedRecomputes(space, plain.layout).front().recompute) {
      continue;
    }
    Layout fitted = plain.layout;
    fitted.recompute = Recompute::kNone;
    bool are_alike = true;
    for (size_t s = 0; s < plain.stage_bytes.size(); ++s) {
      const std::optional<Recompute> least = LeastOfStage(candidates, plain, s);
      if (!least.has_value()) break;
      fitted.recompute_by_stage.push_back(*least);
      fitted.recompute = fitted.recompute | *least;
      are_alike &= *least == fitted.recompute_by_stage.front();
    }
    if (are_alike ||
        fitted.recompute_by_stage.size() < plain.stage_bytes.size()) {
      continue;
    }
    layouts.push_back(std::move(fitted));
  }
  return layouts;
}

}  // namespace

absl::Status ConsiderSmaller(Candidates* candidates) {
  RETURN_IF_ERROR(candidates->Consider(SmallerThanWhatDoesNotFit(*candidates)));
  return candidates->Consider(FittedByStage(*candidates));
}

absl::Status ConsiderListed(const CostModel& cost, Candidates* candidates) {
  const LayoutSpace& space = candidates->space();
  const std::string& asked_for = space.constraints.schedule;
  const bool is_asked_for = asked_for == ScheduleName(Schedule::kListScheduled);
  if (!is_asked_for && asked_for != "auto") return absl::OkStatus();
  std::vector<Candidate> pipelines = candidates->FastestFirst();
  std::erase_if(pipelines, [](const Candidate& candidate) {
    return candidate.layout.pipeline == 1 ||
           candidate.layout.shards_gradients();
  });
  if (is_asked_for) candidates->Clear();
  std::vector<Layout> considered;
  for (Candidate& pipeline : pipelines) {
    if (considered.size() == kSearchBudget.list_scheduled) break;
    const Prediction& prediction = pipeline.prediction;
    const Candidate* fastest = candidates->Fastest();
    pipeline.layout.schedule = Schedule::kOneForwardOneBackward;
    if ((fastest != nullptr &&
         prediction.step_time_s * (1 - prediction.bubble_fraction) >=
             fastest->prediction.step_time_s) ||
        absl::c_linear_search(considered, pipeline.layout)) {
      continue;
    }
    considered.push_back(pipeline.layout);
    ASSIGN_OR_RETURN(const std::optional<Layout> listed,
                     ListScheduledVariant(space.model, pipeline.layout, cost,
                                          candidates->memory_limit() -
                                              prediction.overhead_bytes));
    if (!listed.has_value()) continue;
    RETURN_IF_ERROR(candidates->Consider({*listed}));
  }
  if (!candidates->all().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "layout.schedule is list, but no layout of ", space.num_devices,
      " devices can have it: it takes two stages at least, ZeRO 0 or 1, and "
      "memory for one micro-batch a stage; set layout.schedule to auto"));
}

absl::Status ConsiderCopyEngines(Candidates* candidates) {
  std::vector<Layout> fastest;
  for (const Candidate& candidate : candidates->FastestFirst()) {
    if (fastest.size() < kSearchBudget.with_copy_engines &&
        CopyEngineUseOf(candidate.layout).any()) {
      fastest.push_back(candidate.layout);
    }
  }
  UseCopyEngines(&fastest);
  return candidates->Consider(fastest);
}

}  // namespace millrace
