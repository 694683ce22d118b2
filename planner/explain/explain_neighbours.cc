#include "planner/explain/explain_neighbours.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "planner/job/job_file.h"
#include "planner/job/job_keys.h"
#include "planner/search/prediction.h"

namespace millrace {
namespace {

// A job key with a value other than the chosen layout's.
struct Turn {
  const char* key;
  std::string value;
};

std::vector<Turn> TurnsOf(const Layout& layout, const ModelSpec& model) {
  std::vector<Turn> turns;
  std::vector<std::pair<const char*, int32_t>> sizes = {
      {"layout.pipeline", layout.pipeline},
      {"layout.tensor", layout.tensor},
      {"layout.context", layout.context},
      {"layout.micro_batch", layout.micro_batch}};
  if (model.moe.num_experts > 0) {
    sizes.emplace_back("layout.expert", layout.expert);
  }
  for (const auto& [key, size] : sizes) {
    if (size % 2 == 0) turns.push_back({key, absl::StrCat(size / 2)});
    turns.push_back({key, absl::StrCat(2 * size)});
  }
  for (int32_t zero = 0; zero <= kMaximumZero; ++zero) {
    if (zero == layout.zero) continue;
    turns.push_back({"layout.zero", absl::StrCat(zero)});
  }
  const bool is_uniform = layout.recompute_by_stage.empty();
  const bool is_none = layout.recompute == Recompute::kNone;
  const bool is_full = layout.recompute == Recompute::kFull;
  const std::pair<const char*, bool> recomputes[] = {
      {"none", is_none},
      {"selective", !is_none && !is_full},
      {"full", is_full}};
  for (const auto& [name, is_chosen] : recomputes) {
    if (is_uniform && is_chosen) continue;
    turns.push_back({"layout.recompute", name});
  }
  for (const Schedule schedule :
       {Schedule::kOneForwardOneBackward, Schedule::kZeroBubble,
        Schedule::kInterleaved}) {
    if (layout.pipeline == 1 || schedule == layout.schedule) continue;
    turns.push_back({"layout.schedule", ScheduleName(schedule)});
  }
  return turns;
}

bool IsKnown(const Plan& plan, const Layout& layout) {
  return DifferInChunksOnly(plan.layout, layout) ||
         std::ranges::any_of(plan.alternatives, [&](const Alternative& other) {
           return DifferInChunksOnly(other.layout, layout);
         });
}

// The prediction of `plan` by a model that has priced both plans, the finest.
Prediction PredictionBeside(const Plan& plan, const Plan& other) {
  for (const PriceModel model :
       {PriceModel::kInstructions, PriceModel::kPasses}) {
    if (PredictionBy(model, plan).has_value() &&
        PredictionBy(model, other).has_value()) {
      return *PredictionBy(model, plan);
    }
  }
  return *PredictionBy(PriceModel::kClosedForm, plan);
}

Alternative NeighbourOf(const Plan& chosen, const Plan& best) {
  Alternative neighbour{.layout = best.layout,
                        .pipeline_outermost = best.pipeline_outermost,
                        .listed_bytes = best.listed_bytes,
                        .prediction = PredictionBeside(best, chosen)};
  const Prediction like = PredictionBeside(chosen, best);
  SayWhyItLost(like, /*memory_limit=*/0, chosen.prediction.model, &neighbour);
  // The search simulates only what its closed form ranks first.
  if (like.model != PriceModel::kClosedForm &&
      neighbour.prediction.step_time_s < like.step_time_s) {
    absl::StrAppend(&neighbour.reason,
                    ", but behind all simulated ones by the closed form");
    absl::StrAppend(&neighbour.brief_reason, ", but found after the choice");
  }
  return neighbour;
}

}  // namespace

bool DifferInChunksOnly(Layout a, Layout b) {
  a.interleave = b.interleave = 1;
  // A layout with one chunk a stage is not interleaved, but is the limiting
  // case.
  for (Layout* layout : {&a, &b}) {
    if (layout->schedule == Schedule::kInterleaved) {
      layout->schedule = Schedule::kOneForwardOneBackward;
    }
  }
  return a == b;
}

int64_t NumListedPasses(const Plan& plan) {
  const Layout& layout = plan.layout;
  return plan.listed_bytes.empty()
             ? 0
             : int64_t{2} * layout.pipeline * layout.interleave *
                   layout.most_microbatches();
}

absl::Status AddNeighbours(const PlanningCase& planned, const Planner& planner,
                           Plan* plan) {
  for (const Turn& turn : TurnsOf(plan->layout, planned.job.model)) {
    const JobKey* key = FindJobKey(turn.key);
    CHECK(key != nullptr) << turn.key;
    // A key that the job pins is not open.
    if (JobValueToYaml(*key, planned.job) != "auto") continue;
    PlanningCase turned = planned;
    CHECK(SetJobValue(*key, turn.value, &turned.job)) << turn.key;
    absl::StatusOr<Plan> best = planner(turned);
    if (absl::IsInvalidArgument(best.status())) continue;
    if (!best.ok()) return best.status();
    if (IsKnown(*plan, best->layout)) continue;
    plan->alternatives.push_back(NeighbourOf(*plan, *best));
  }
  // Each beside the choice by its own model.
  const auto ratio = [&](const Alternative& alternative) {
    const Prediction& prediction = alternative.prediction;
    return prediction.step_time_s /
           PredictionBy(prediction.model, *plan)->step_time_s;
  };
  std::stable_sort(plan->alternatives.begin(), plan->alternatives.end(),
                   [&](const Alternative& a, const Alternative& b) {
                     if (a.fits != b.fits) return a.fits;
                     return ratio(a) < ratio(b);
                   });
  return absl::OkStatus();
}

}  // namespace millrace
