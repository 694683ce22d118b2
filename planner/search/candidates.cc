#include "planner/search/candidates.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "base/status_macros.h"
#include "planner/cost/recompute_ladder.h"
#include "planner/lower/lower.h"
#include "planner/lower/program_size.h"
#include "planner/search/prediction.h"
#include "planner/search/program_prediction.h"
#include "planner/search/search_budget.h"

namespace millrace {
namespace {

bool IsFaster(const Candidate& a, const Candidate& b) {
  return a.prediction.step_time_s < b.prediction.step_time_s;
}

}  // namespace

Candidates::Candidates(const SearchInput& input, const CostModel& cost,
                       int64_t memory_limit)
    : cost_(cost),
      memory_limit_(memory_limit),
      space_(LayoutSpaceOf(input.job, input.num_devices)),
      step_model_(StepModel::Create(space_.model, cost, {})) {
  space_.recomputes = [this](const Layout& layout) {
    return Recomputes(layout);
  };
}

const std::vector<Recompute>& Candidates::Recomputes(const Layout& layout) {
  std::vector<Recompute>& known =
      recomputes_[{layout.tensor, layout.micro_batch}];
  if (known.empty()) {
    known = CheckProfile(layout, cost_).ok()
                ? RecomputeLadder(PriceRecompute(space_.model, layout, cost_))
                : UnpricedRecomputes();
  }
  return known;
}

absl::Status Candidates::Consider(const std::vector<Layout>& layouts) {
  RETURN_IF_ERROR(step_model_.status());
  const size_t begin = candidates_.size();
  for (const Layout& layout : layouts) {
    RETURN_IF_ERROR(CheckProfile(layout, cost_));
    candidates_.push_back({.layout = layout, .prediction = Estimated(layout)});
  }
  // Stable: EnumerateLayouts puts the simpler of equals first.
  std::vector<size_t> order(candidates_.size() - begin);
  std::iota(order.begin(), order.end(), begin);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return IsFaster(candidates_[a], candidates_[b]);
  });
  return SimulateBest(order);
}

Prediction Candidates::Estimated(const Layout& layout) {
  const StepTime time = step_model_->Predict(layout).time;
  const double step_time_s = time.step_time_s();
  Prediction prediction;
  FillTime(space_.model, layout, cost_, step_time_s, &prediction);
  prediction.bubble_fraction = time.bubble_s / step_time_s;
  prediction.exposed_communication_fraction =
      (time.exposed_tensor_s + time.exposed_data_s + time.transfer_s) /
      step_time_s;
  return prediction;
}

absl::Status Candidates::SimulateBest(const std::vector<size_t>& order) {
  int num_simulated = 0;
  int64_t num_instructions = 0;
  for (const size_t idx : order) {
    if ((num_simulated >= kSearchBudget.least_simulated &&
         num_instructions >= kSearchBudget.instructions) ||
        (num_simulated > 0 &&
         num_instructions >= kSearchBudget.most_instructions)) {
      break;
    }
    Candidate& candidate = candidates_[idx];
    const absl::Status too_large =
        CheckProgramSize(space_.model, candidate.layout);
    if (!too_large.ok()) {
      candidate.fits = false;
      candidate.is_too_large = true;
      too_large_.Update(too_large);
      continue;
    }
    // A few micro-batches tell of a long step that it does not fit.
    const int32_t few = 4 * candidate.layout.pipeline;
    if (candidate.layout.num_microbatches > few &&
        candidate.layout.schedule != Schedule::kListScheduled) {
      Layout shorter = candidate.layout;
      shorter.num_microbatches = few;
      ASSIGN_OR_RETURN(const std::vector<Program> programs,
                       BuildTrainingPrograms(space_.model, shorter));
      TakeMemory(programs, &candidate);
      if (!candidate.fits) continue;
    }
    ASSIGN_OR_RETURN(const std::optional<ShortStep> slower,
                     IfSlower(candidate.layout));
    if (slower.has_value()) {
      num_instructions += slower->num_instructions;
      candidate.prediction = slower->prediction;
      candidate.stage_bytes = slower->stage_bytes;
      candidate.fits = candidate.prediction.memory_bytes() <= memory_limit_;
      candidate.simulated = candidate.fits;
      if (candidate.fits) ++num_simulated;
      continue;
    }
    ASSIGN_OR_RETURN(const std::vector<Program> programs,
                     BuildTrainingPrograms(space_.model, candidate.layout));
    for (const Program& program : programs) {
      num_instructions += static_cast<int64_t>(program.instructions.size());
    }
    TakeMemory(programs, &candidate);
    if (!candidate.fits) continue;
    ASSIGN_OR_RETURN(const Timeline timeline,
                     SimulatePrograms(programs, cost_));
    FillSimulated(space_.model, programs, cost_, timeline,
                  &candidate.prediction);
    candidate.simulated = true;
    ++num_simulated;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ShortStep>> Candidates::IfSlower(
    const Layout& layout) const {
  const Candidate* fastest = Fastest();
  if (fastest == nullptr) return std::nullopt;
  ASSIGN_OR_RETURN(std::optional<ShortStep> step,
                   PredictFromFewMicrobatches(space_.model, layout, cost_));
  if (step.has_value() &&
      !step->IsSlowerThan(fastest->prediction.step_time_s)) {
    step.reset();
  }
  return step;
}

void Candidates::TakeMemory(std::span<const Program> programs,
                            Candidate* candidate) const {
  const MemoryOverhead& overhead = cost_.profile().memory_overhead;
  FillMemory(programs, overhead, &candidate->prediction);
  candidate->stage_bytes.clear();
  for (const Program& program : programs) {
    candidate->stage_bytes.push_back(StageBytes(program, overhead));
  }
  candidate->fits = candidate->prediction.memory_bytes() <= memory_limit_;
}

std::vector<Candidate> Candidates::FastestFirst() const {
  std::vector<Candidate> simulated = candidates_;
  std::erase_if(simulated, [](const Candidate& c) { return !c.simulated; });
  absl::c_stable_sort(simulated, IsFaster);
  return simulated;
}

const Candidate* Candidates::Fastest() const {
  const Candidate* fastest = nullptr;
  for (const Candidate& candidate : candidates_) {
    if (candidate.simulated &&
        (fastest == nullptr || IsFaster(candidate, *fastest))) {
      fastest = &candidate;
    }
  }
  return fastest;
}

}  // namespace millrace
