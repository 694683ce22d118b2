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
  return std::min(layout.most_microbatches(), 4 * layout.pipeline);
}

// The share of kMostInstructions that are lowered at once for a layout, which
// is the memory that pricing it takes. An upper bound.
double ShareOfMostInstructions(const ModelSpec& model, const Layout& layout) {
  const int32_t at_once =
      MostShortMicrobatches(layout).value_or(layout.most_microbatches());
  return static_cast<double>(at_once) /
         static_cast<double>(
             MicrobatchBoundsOf(model, layout).always_few_enough);
}

bool IsToBePriced(const Finalist& finalist) {
  return finalist.can_be_lowered && !finalist.lowered;
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
                                           StepModel& model, int num_threads,
                                           std::stop_token stop)
    : space_(space),
      memory_limit_(memory_limit),
      cost_(cost),
      model_(model),
      num_threads_(num_threads),
      stop_(std::move(stop)) {}

absl::Status InstructionFinalists::PriceAll(bool until_one_fits,
                                            std::vector<Finalist>* finalists) {
  PricedAhead priced(finalists->size());
  size_t num_priced = 0;
  // Step times of the fastest finalist so far, by either model.
  double fastest_s = std::numeric_limits<double>::infinity();
  double fastest_closed_form_s = fastest_s;
  for (size_t i = 0; i < finalists->size(); ++i) {
    if (!IsToBePriced((*finalists)[i])) continue;
    const double closed_form_s = (*finalists)[i].closed_form.step_time_s;
    const bool is_close =
        closed_form_s <
        (1 + kSearchBudget.closed_form_error) * fastest_closed_form_s;
    if (num_priced >= kSearchBudget.least_lowered &&
        num_instructions_ >= (is_close ? kSearchBudget.most_instructions
                                       : kSearchBudget.instructions)) {
      continue;
    }
    PriceAhead(*finalists, i,
               {.until_one_fits = until_one_fits, .refits = true}, &priced);
    Finalist& finalist = (*finalists)[i];
    ASSIGN_OR_RETURN(std::optional<Layout> fitted,
                     Take(*std::exchange(priced[i], std::nullopt), &finalist));
    if (finalist.instructions.has_value() && finalist.fits) {
      if (until_one_fits) return absl::OkStatus();
      ++num_priced;
      if (finalist.instructions->step_time_s < fastest_s) {
        fastest_s = finalist.instructions->step_time_s;
        fastest_closed_form_s = closed_form_s;
      }
    }
    if (fitted.has_value()) Add(*std::move(fitted), i, finalists, &priced);
  }
  return absl::OkStatus();
}

absl::Status InstructionFinalists::PriceEach(std::vector<Finalist>* finalists) {
  PricedAhead priced(finalists->size());
  for (size_t i = 0; i < finalists->size(); ++i) {
    PriceAhead(*finalists, i, {}, &priced);
    RETURN_IF_ERROR(
        Take(*std::exchange(priced[i], std::nullopt), &(*finalists)[i])
            .status());
  }
  return absl::OkStatus();
}

absl::Status InstructionFinalists::Price(Finalist* finalist) {
  return Take(PriceOne(*finalist, stop_), finalist).status();
}

void InstructionFinalists::PriceAhead(const std::vector<Finalist>& finalists,
                                      size_t next, AheadOptions options,
                                      PricedAhead* priced) {
  if ((*priced)[next].has_value()) return;
  std::vector<size_t> chosen;
  int64_t num_stages = 0;
  double share = 0;
  for (size_t i = next; i < finalists.size() && num_stages < num_threads_;
       ++i) {
    const Layout& layout = finalists[i].layout;
    if (!IsToBePriced(finalists[i]) || (*priced)[i].has_value()) continue;
    share += ShareOfMostInstructions(space_.model, layout);
    if (!chosen.empty() && share > 1) break;
    chosen.push_back(i);
    num_stages += layout.pipeline;
  }
  std::vector<std::stop_source> stops(chosen.size());
  const std::stop_callback all_stop(stop_, [&] {
    for (std::stop_source& stop : stops) stop.request_stop();
  });
  const auto price = [&](int64_t i) {
    const std::stop_token stop = stops[i].get_token();
    absl::StatusOr<Priced>& result =
        (*priced)[chosen[i]].emplace(PriceOne(finalists[chosen[i]], stop));
    if (!result.ok()) return absl::OkStatus();
    const Finalist& finalist = result->finalist;
    if (options.refits && finalist.lowered && !finalist.fits) {
      absl::StatusOr<std::optional<Layout>> fitted =
          FitRecompute(finalist.layout, stop);
      if (fitted.ok()) {
        result->fitted = *std::move(fitted);
      } else {
        result = fitted.status();
      }
    } else if (options.until_one_fits && finalist.fits &&
               finalist.instructions.has_value()) {
      for (size_t behind = i + 1; behind < stops.size(); ++behind) {
        stops[behind].request_stop();
      }
    }
    return absl::OkStatus();
  };
  ParallelFor(static_cast<int64_t>(chosen.size()), num_threads_, price)
      .IgnoreError();  // Each price has its own.
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (stops[i].stop_requested() && !stop_.stop_requested()) {
      (*priced)[chosen[i]].reset();
    }
  }
}

absl::StatusOr<InstructionFinalists::Priced> InstructionFinalists::PriceOne(
    const Finalist& finalist, const std::stop_token& stop) const {
  const ModelSpec& model = space_.model;
  const Layout& layout = finalist.layout;
  Priced priced{.finalist = finalist};
  RETURN_IF_ERROR(CheckNotStopped(stop));
  priced.size = CheckProgramSize(model, layout, stop);
  RETURN_IF_ERROR(CheckNotStopped(stop));
  if (!priced.size.ok()) {
    priced.finalist.is_too_large = true;
    return priced;
  }
  ASSIGN_OR_RETURN(
      const std::optional<ShortStep> shorter,
      PredictFromFewMicrobatches(model, layout, cost_, memory_limit_, stop));
  if (shorter.has_value()) {
    priced.num_instructions = shorter->num_instructions;
    TakeMemory(shorter->prediction, &priced.finalist);
    if (priced.finalist.fits) {
      priced.finalist.instructions = shorter->prediction;
      priced.finalist.instructions->closed_form =
          finalist.closed_form.closed_form;
    }
  } else {
    // A few micro-batches tell of a long step that it does not fit. Where they
    // are most of the step, all of them tell nearly as soon.
    if (2 * FewMicrobatches(layout) <= layout.most_microbatches() &&
        layout.schedule != Schedule::kListScheduled) {
      Layout few = layout;
      few.SetMicrobatches(FewMicrobatches(layout));
      ASSIGN_OR_RETURN(const std::vector<Program> programs,
                       BuildTrainingPrograms(model, few, stop));
      priced.num_instructions = NumInstructions(programs);
      TakeMemory(MemoryOf(programs), &priced.finalist);
    }
    if (priced.finalist.fits || !priced.finalist.lowered) {
      RETURN_IF_ERROR(LowerAll(stop, &priced));
    }
  }
  return priced;
}

absl::StatusOr<std::optional<Layout>> InstructionFinalists::Take(
    absl::StatusOr<Priced> priced, Finalist* finalist) {
  RETURN_IF_ERROR(priced.status());
  *finalist = std::move(priced->finalist);
  num_instructions_ += priced->num_instructions;
  too_large_.Update(priced->size);
  if (finalist->lowered && !finalist->fits) {
    const int64_t excess = finalist->closed_form.memory_bytes() - memory_limit_;
    least_excess_bytes_ = least_excess_bytes_ == 0
                              ? excess
                              : std::min(least_excess_bytes_, excess);
  }
  std::optional<LoweredStep>& lowered = priced->lowered;
  if (lowered.has_value() &&
      (!fastest_.has_value() ||
       lowered->timeline.step_time_s < fastest_->timeline.step_time_s)) {
    fastest_ = std::move(lowered);
  }
  return std::move(priced->fitted);
}

void InstructionFinalists::Add(Layout layout, size_t idx,
                               std::vector<Finalist>* finalists,
                               PricedAhead* priced) {
  if (absl::c_any_of(*finalists, [&](const Finalist& other) {
        return !other.pipeline_outermost && other.layout == layout;
      })) {
    return;
  }
  Finalist added{
      .layout = std::move(layout), .can_be_lowered = true, .listed_bytes = {}};
  added.closed_form = PredictionOf(space_.model, added.layout, cost_,
                                   model_.Predict(added.layout));
  const auto later = std::find_if(
      finalists->begin() + static_cast<std::ptrdiff_t>(idx) + 1,
      finalists->end(), [&](const Finalist& other) {
        return other.closed_form.step_time_s > added.closed_form.step_time_s;
      });
  priced->insert(priced->begin() + (later - finalists->begin()), std::nullopt);
  finalists->insert(later, std::move(added));
}

absl::StatusOr<LoweredStep> InstructionFinalists::Lower(Finalist* finalist) {
  if (fastest_.has_value() && fastest_->layout == finalist->layout) {
    return *std::exchange(fastest_, std::nullopt);
  }
  Priced priced{.finalist = *finalist};
  RETURN_IF_ERROR(LowerAll(stop_, &priced));
  LoweredStep lowered = std::exchange(priced.lowered, std::nullopt)
                            .value_or(LoweredStep{.layout = finalist->layout});
  RETURN_IF_ERROR(Take(std::move(priced), finalist).status());
  return lowered;
}

absl::Status InstructionFinalists::LowerAll(const std::stop_token& stop,
                                            Priced* priced) const {
  const ModelSpec& model = space_.model;
  Finalist& finalist = priced->finalist;
  LoweredStep lowered{.layout = finalist.layout};
  ASSIGN_OR_RETURN(lowered.programs,
                   BuildTrainingPrograms(model, finalist.layout, stop));
  priced->num_instructions += NumInstructions(lowered.programs);
  TakeMemory(MemoryOf(lowered.programs), &finalist);
  finalist.instructions.reset();
  if (!finalist.fits) return absl::OkStatus();
  ASSIGN_OR_RETURN(lowered.timeline,
                   SimulatePrograms(lowered.programs, cost_, stop));
  Prediction& prediction = finalist.instructions.emplace();
  CopyMemory(finalist.closed_form, &prediction);
  FillSimulated(model, lowered.programs, cost_, lowered.timeline, &prediction);
  prediction.closed_form = finalist.closed_form.closed_form;
  priced->lowered = std::move(lowered);
  return absl::OkStatus();
}

Prediction InstructionFinalists::MemoryOf(
    std::span<const Program> programs) const {
  Prediction memory;
  FillMemory(programs, cost_.profile().memory_overhead, &memory);
  return memory;
}

void InstructionFinalists::TakeMemory(const Prediction& memory,
                                      Finalist* finalist) const {
  CopyMemory(memory, &finalist->closed_form);
  if (finalist->passes.has_value()) CopyMemory(memory, &*finalist->passes);
  finalist->lowered = true;
  finalist->fits = memory.memory_bytes() <= memory_limit_;
}

absl::StatusOr<bool> InstructionFinalists::StageFits(
    const Layout& layout, int32_t stage, const std::stop_token& stop) const {
  Layout shorter = layout;
  shorter.SetMicrobatches(FewMicrobatches(layout));
  ASSIGN_OR_RETURN(const Program program,
                   BuildTrainingProgram(space_.model, shorter, stage, stop));
  return StageBytes(program, cost_.profile().memory_overhead) <= memory_limit_;
}

// Nothing where no allowed recompute helps.
absl::StatusOr<std::optional<Layout>> InstructionFinalists::FitRecompute(
    const Layout& layout, const std::stop_token& stop) {
  if (!LeavesStagesOpen(space_.constraints.recompute)) return std::nullopt;
  Layout fitted = layout;
  std::vector<StageRecomputes> allowed;
  {
    const std::lock_guard<std::mutex> lock(recomputes_mutex_);
    allowed = AllowedRecomputes(space_, layout);
  }
  std::vector<std::optional<Recompute>> least(layout.pipeline);
  RETURN_IF_ERROR(ParallelFor(
      layout.pipeline, NumComputeThreads(), [&](int64_t i) -> absl::Status {
        const auto stage = static_cast<int32_t>(i);
        for (const StageRecomputes& again : allowed) {
          if (!Has(again.recompute, layout.recompute_of(stage))) continue;
          Layout uniform = layout;
          SetRecompute(again, &uniform);
          ASSIGN_OR_RETURN(const bool fits, StageFits(uniform, stage, stop));
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
  return fitted;
}

}  // namespace millrace
