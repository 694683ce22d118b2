#include "planner/search/instruction_finalists.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "planner/lower/lower.h"
#include "planner/lower/program_size.h"
#include "planner/search/prediction.h"
#include "planner/search/program_prediction.h"
#include "planner/search/search_budget.h"
#include "planner/search/short_step.h"

namespace millrace {
namespace {

// Micro-batches after which a stage holds as much as it ever does.
int32_t FewMicrobatches(const Layout& layout) {
  return std::min(layout.num_microbatches, 4 * layout.pipeline);
}

int64_t NumInstructions(std::span<const Program> programs) {
  int64_t count = 0;
  for (const Program& program : programs) {
    count += static_cast<int64_t>(program.instructions.size());
  }
  return count;
}

void CopyMemory(const Prediction& from, Prediction* to) {
  to->persistent_bytes = from.persistent_bytes;
  to->step_bytes = from.step_bytes;
  to->overhead_bytes = from.overhead_bytes;
  to->parameter_bytes = from.parameter_bytes;
  to->gradient_bytes = from.gradient_bytes;
  to->optimizer_bytes = from.optimizer_bytes;
}

}  // namespace

InstructionFinalists::InstructionFinalists(const LayoutSpace& space,
                                           int64_t memory_limit,
                                           const CostModel& cost,
                                           StepModel& model,
                                           std::stop_token stop)
    : space_(space),
      memory_limit_(memory_limit),
      cost_(cost),
      model_(model),
      stop_(std::move(stop)) {}

absl::Status InstructionFinalists::PriceAll(bool until_one_fits,
                                            std::vector<Finalist>* finalists) {
  size_t num_priced = 0;
  // Step times of the fastest finalist so far, by either model.
  double fastest_s = std::numeric_limits<double>::infinity();
  double fastest_closed_form_s = fastest_s;
  for (size_t i = 0; i < finalists->size(); ++i) {
    Finalist& finalist = (*finalists)[i];
    if (!finalist.can_be_lowered || finalist.lowered) continue;
    const double closed_form_s = finalist.closed_form.step_time_s;
    const bool is_close =
        closed_form_s <
        (1 + kSearchBudget.closed_form_error) * fastest_closed_form_s;
    if (num_priced >= kSearchBudget.least_lowered &&
        num_instructions_ >= (is_close ? kSearchBudget.most_instructions
                                       : kSearchBudget.instructions)) {
      continue;
    }
    RETURN_IF_ERROR(Price(&finalist));
    if (finalist.instructions.has_value() && finalist.fits) {
      if (until_one_fits) return absl::OkStatus();
      ++num_priced;
      if (finalist.instructions->step_time_s < fastest_s) {
        fastest_s = finalist.instructions->step_time_s;
        fastest_closed_form_s = closed_form_s;
      }
    }
    if (!finalist.lowered || finalist.fits) continue;
    ASSIGN_OR_RETURN(std::optional<Finalist> fitted, FitRecompute(finalist));
    if (!fitted.has_value() ||
        absl::c_any_of(*finalists, [&](const Finalist& other) {
          return !other.pipeline_outermost && other.layout == fitted->layout;
        })) {
      continue;
    }
    // Its turn comes when the closed form says so.
    const auto later =
        std::find_if(finalists->begin() + static_cast<std::ptrdiff_t>(i) + 1,
                     finalists->end(), [&](const Finalist& other) {
                       return other.closed_form.step_time_s >
                              fitted->closed_form.step_time_s;
                     });
    finalists->insert(later, *std::move(fitted));
  }
  return absl::OkStatus();
}

absl::Status InstructionFinalists::Price(Finalist* finalist) {
  const ModelSpec& model = space_.model;
  const Layout& layout = finalist->layout;
  if (const absl::Status status = CheckProgramSize(model, layout, stop_);
      !status.ok()) {
    RETURN_IF_ERROR(CheckNotStopped(stop_));
    finalist->is_too_large = true;
    too_large_.Update(status);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(
      const std::optional<ShortStep> shorter,
      PredictFromFewMicrobatches(model, layout, cost_, memory_limit_, stop_));
  if (shorter.has_value()) {
    num_instructions_ += shorter->num_instructions;
    TakeMemory(shorter->prediction, finalist);
    if (finalist->fits) {
      finalist->instructions = shorter->prediction;
      finalist->instructions->closed_form = finalist->closed_form.closed_form;
    }
    return absl::OkStatus();
  }
  // A few micro-batches tell of a long step that it does not fit.
  if (FewMicrobatches(layout) < layout.num_microbatches &&
      layout.schedule != Schedule::kListScheduled) {
    Layout few = layout;
    few.num_microbatches = FewMicrobatches(layout);
    ASSIGN_OR_RETURN(const std::vector<Program> programs,
                     BuildTrainingPrograms(model, few, stop_));
    num_instructions_ += NumInstructions(programs);
    TakeMemory(MemoryOf(programs), finalist);
    if (!finalist->fits) return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(LoweredStep lowered, LowerAll(finalist));
  if (finalist->fits &&
      (!fastest_.has_value() ||
       lowered.timeline.step_time_s < fastest_->timeline.step_time_s)) {
    fastest_ = std::move(lowered);
  }
  return absl::OkStatus();
}

absl::StatusOr<LoweredStep> InstructionFinalists::Lower(Finalist* finalist) {
  if (fastest_.has_value() && fastest_->layout == finalist->layout) {
    return *std::exchange(fastest_, std::nullopt);
  }
  return LowerAll(finalist);
}

absl::StatusOr<LoweredStep> InstructionFinalists::LowerAll(Finalist* finalist) {
  const ModelSpec& model = space_.model;
  LoweredStep lowered{.layout = finalist->layout};
  ASSIGN_OR_RETURN(lowered.programs,
                   BuildTrainingPrograms(model, finalist->layout, stop_));
  num_instructions_ += NumInstructions(lowered.programs);
  TakeMemory(MemoryOf(lowered.programs), finalist);
  finalist->instructions.reset();
  if (!finalist->fits) return lowered;
  ASSIGN_OR_RETURN(lowered.timeline,
                   SimulatePrograms(lowered.programs, cost_, stop_));
  Prediction& prediction = finalist->instructions.emplace();
  CopyMemory(finalist->closed_form, &prediction);
  FillSimulated(model, lowered.programs, cost_, lowered.timeline, &prediction);
  prediction.closed_form = finalist->closed_form.closed_form;
  return lowered;
}

Prediction InstructionFinalists::MemoryOf(
    std::span<const Program> programs) const {
  Prediction memory;
  FillMemory(programs, cost_.profile().memory_overhead, &memory);
  return memory;
}

void InstructionFinalists::TakeMemory(const Prediction& memory,
                                      Finalist* finalist) {
  CopyMemory(memory, &finalist->closed_form);
  if (finalist->passes.has_value()) CopyMemory(memory, &*finalist->passes);
  finalist->lowered = true;
  const int64_t excess = memory.memory_bytes() - memory_limit_;
  finalist->fits = excess <= 0;
  if (finalist->fits) return;
  least_excess_bytes_ =
      least_excess_bytes_ == 0 ? excess : std::min(least_excess_bytes_, excess);
}

absl::StatusOr<bool> InstructionFinalists::StageFits(const Layout& layout,
                                                     int32_t stage) const {
  Layout shorter = layout;
  shorter.num_microbatches = FewMicrobatches(layout);
  ASSIGN_OR_RETURN(const Program program,
                   BuildTrainingProgram(space_.model, shorter, stage, stop_));
  return StageBytes(program, cost_.profile().memory_overhead) <= memory_limit_;
}

absl::StatusOr<std::optional<Finalist>> InstructionFinalists::FitRecompute(
    const Finalist& finalist) {
  const Layout& layout = finalist.layout;
  if (!LeavesStagesOpen(space_.constraints.recompute)) return std::nullopt;
  Layout fitted = layout;
  const std::vector<StageRecomputes> allowed =
      AllowedRecomputes(space_, layout);
  std::vector<std::optional<Recompute>> least(layout.pipeline);
  RETURN_IF_ERROR(ParallelFor(
      layout.pipeline, NumComputeThreads(), [&](int64_t i) -> absl::Status {
        const auto stage = static_cast<int32_t>(i);
        for (const StageRecomputes& again : allowed) {
          if (!Has(again.recompute, layout.recompute_of(stage))) continue;
          Layout uniform = layout;
          SetRecompute(again, &uniform);
          ASSIGN_OR_RETURN(const bool fits, StageFits(uniform, stage));
          if (!fits) continue;
          least[i] = again.recompute;
          break;
        }
        return absl::OkStatus();
      }));
  fitted.recompute = Recompute::kNone;
  fitted.recompute_by_stage.clear();
  for (const std::optional<Recompute>& stage : least) {
    if (!stage.has_value()) return std::nullopt;
    fitted.recompute_by_stage.push_back(*stage);
    fitted.recompute = fitted.recompute | *stage;
  }
  if (absl::c_all_of(fitted.recompute_by_stage, [&](Recompute stage) {
        return stage == fitted.recompute_by_stage.front();
      })) {
    fitted.recompute_by_stage.clear();
  }
  Finalist result{
      .layout = std::move(fitted), .can_be_lowered = true, .listed_bytes = {}};
  result.closed_form = PredictionOf(space_.model, result.layout, cost_,
                                    model_.Predict(result.layout));
  return result;
}

}  // namespace millrace
