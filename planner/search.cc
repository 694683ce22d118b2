#include "planner/search.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "planner/chunk_choice.h"
#include "planner/copy_engine_choice.h"
#include "planner/copy_engines.h"
#include "planner/estimate.h"
#include "planner/executable.h"
#include "planner/finalists.h"
#include "planner/layout_space.h"
#include "planner/list_variant.h"
#include "planner/lower.h"
#include "planner/planned_search.h"
#include "planner/prediction.h"
#include "planner/program_prediction.h"
#include "planner/program_size.h"
#include "planner/recompute_ladder.h"

namespace millrace {
namespace {

// The closed form ranks well but not perfectly: at least so many of its best
// are simulated, and more while that stays quick.
constexpr int kMinimumSimulated = 12;
constexpr int64_t kInstructionBudget = 400'000;
// However few they are: two minutes.
constexpr int64_t kMostLowered = 12'000'000;
constexpr size_t kMostListed = 3;
constexpr size_t kMostWithCopyEngines = 3;
constexpr size_t kMostWithChunks = 3;

std::vector<uint64_t> HashesOf(std::span<const Program> programs) {
  std::vector<uint64_t> hashes;
  for (const Program& program : programs) {
    hashes.push_back(ProgramHash(program));
  }
  return hashes;
}

// One layout on its way through the search.
struct Candidate {
  Layout layout;
  Prediction prediction;
  bool fits = true;
  bool simulated = false;
  bool is_too_large = false;         // By CheckProgramSize().
  std::vector<int64_t> stage_bytes;  // Of what was lowered.
};

// Whether two layouts differ in what is computed again alone.
bool DifferInRecompute(Layout a, const Layout& b) {
  a.recompute = b.recompute;
  a.recompute_by_stage = b.recompute_by_stage;
  return a == b;
}

class Search {
 public:
  Search(const SearchInput& input, const CostModel& cost)
      : input_(input),
        cost_(cost),
        space_(LayoutSpaceOf(input.job, input.num_devices)),
        memory_limit_(input.job.resources.memory_per_device_bytes.value_or(
            input.device_memory_bytes > 0
                ? input.device_memory_bytes
                : cost.profile().device_memory_bytes)),
        copy_engines_(CopyEngineChoiceOf(input.job.resources, cost.profile())),
        step_model_(StepModel::Create(space_.model, cost.profile(), {})) {
    space_.recomputes = [this](const Layout& layout) {
      return Recomputes(layout);
    };
  }

  absl::StatusOr<Plan> Run() {
    const double start_s = MonotonicSeconds();
    if (input_.all_axes) {
      ASSIGN_OR_RETURN(Plan plan, PlanAllAxes());
      plan.search_seconds = MonotonicSeconds() - start_s;
      return plan;
    }
    RETURN_IF_ERROR(CheckLayouts(input_.job, input_.num_devices));
    std::vector<Layout> layouts = EnumerateLayouts(space_);
    if (copy_engines_ == CopyEngineChoice::kAlways) UseCopyEngines(&layouts);
    RETURN_IF_ERROR(Consider(layouts));
    RETURN_IF_ERROR(Consider(SmallerThanWhatDoesNotFit()));
    RETURN_IF_ERROR(Consider(FittedByStage()));
    RETURN_IF_ERROR(ConsiderListed());
    RETURN_IF_ERROR(ConsiderCopyEngines());
    RETURN_IF_ERROR(ConsiderChunks());
    const Candidate* chosen = Fastest();
    if (chosen == nullptr) return ExplainNothingFits();
    ASSIGN_OR_RETURN(Plan plan, MakePlan(*chosen));
    plan.search_seconds = MonotonicSeconds() - start_s;
    return plan;
  }

 private:
  // By the times that the profile has of ops.
  const std::vector<Recompute>& Recomputes(const Layout& layout) {
    std::vector<Recompute>& known =
        recomputes_[{layout.tensor, layout.micro_batch}];
    if (known.empty()) {
      known = CheckProfile(layout, cost_).ok()
                  ? RecomputeLadder(PriceRecompute(space_.model, layout, cost_))
                  : UnpricedRecomputes();
    }
    return known;
  }

  // Estimates all, lowers and simulates the best.
  absl::Status Consider(const std::vector<Layout>& layouts) {
    const size_t begin = candidates_.size();
    for (const Layout& layout : layouts) {
      RETURN_IF_ERROR(CheckProfile(layout, cost_));
      candidates_.push_back(
          {.layout = layout, .prediction = Estimated(layout)});
    }
    // Stable: EnumerateLayouts puts the simpler of equals first.
    std::vector<size_t> order(candidates_.size() - begin);
    std::iota(order.begin(), order.end(), begin);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return candidates_[a].prediction.step_time_s <
             candidates_[b].prediction.step_time_s;
    });
    return SimulateBest(order);
  }

  // By the closed form of layers where the profile has what it takes: on H200
  // its order of 102 layouts is nearer to that of simulation (Spearman 0.93 to
  // 0.99 for three models) than that of ops (0.92 to 0.95), and it is about
  // half as far off.
  StepEstimate Estimate(const Layout& layout) {
    if (!step_model_.ok()) return EstimateStep(space_.model, layout, cost_);
    const StepTime time = step_model_->Predict(layout).time;
    const double step_time_s = time.step_time_s();
    return {
        .step_time_s = step_time_s,
        .bubble_fraction = time.bubble_s / step_time_s,
        .exposed_communication_fraction =
            (time.exposed_tensor_s + time.exposed_data_s + time.transfer_s) /
            step_time_s};
  }

  Prediction Estimated(const Layout& layout) {
    const StepEstimate estimate = Estimate(layout);
    Prediction prediction;
    FillTime(space_.model, layout, cost_, estimate.step_time_s, &prediction);
    prediction.bubble_fraction = estimate.bubble_fraction;
    prediction.exposed_communication_fraction =
        estimate.exposed_communication_fraction;
    return prediction;
  }

  std::vector<Layout> SmallerThanWhatDoesNotFit() const {
    std::vector<Layout> layouts;
    for (const Candidate& candidate : candidates_) {
      if (candidate.fits || candidate.is_too_large) continue;
      for (const Layout& smaller : SmallerLayouts(space_, candidate.layout)) {
        layouts.push_back(smaller);
      }
    }
    return layouts;
  }

  // The least with which a stage's own Program fits, of what was lowered of
  // layouts that differ in what is computed again.
  std::optional<Recompute> LeastOfStage(const Candidate& plain,
                                        size_t stage) const {
    for (const StageRecomputes& again :
         AllowedRecomputes(space_, plain.layout)) {
      for (const Candidate& other : candidates_) {
        if (stage < other.stage_bytes.size() &&
            other.stage_bytes[stage] <= memory_limit_ &&
            other.layout.recompute == again.recompute &&
            DifferInRecompute(other.layout, plain.layout)) {
          return again.recompute;
        }
      }
    }
    return std::nullopt;
  }

  // Pipelines of which not all stages need what lets the fullest fit: of each
  // stage the least with which its own Program does.
  std::vector<Layout> FittedByStage() const {
    std::vector<Layout> layouts;
    if (!LeavesStagesOpen(space_.constraints.recompute)) return layouts;
    for (const Candidate& plain : candidates_) {
      const bool is_lowered = !plain.stage_bytes.empty();
      if (plain.fits || !is_lowered || plain.layout.pipeline == 1 ||
          plain.layout.recompute !=
              AllowedRecomputes(space_, plain.layout).front().recompute) {
        continue;
      }
      Layout fitted = plain.layout;
      fitted.recompute = Recompute::kNone;
      bool are_alike = true;
      for (size_t s = 0; s < plain.stage_bytes.size(); ++s) {
        const std::optional<Recompute> least = LeastOfStage(plain, s);
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

  void TakeMemory(const std::vector<Program>& programs, Candidate* candidate) {
    const MemoryOverhead& overhead = cost_.profile().memory_overhead;
    FillMemory(programs, overhead, &candidate->prediction);
    candidate->stage_bytes.clear();
    for (const Program& program : programs) {
      candidate->stage_bytes.push_back(StageBytes(program, overhead));
    }
    candidate->fits = candidate->prediction.memory_bytes() <= memory_limit_;
  }

  absl::Status SimulateBest(const std::vector<size_t>& order) {
    int num_simulated = 0;
    int64_t num_instructions = 0;
    for (const size_t idx : order) {
      if ((num_simulated >= kMinimumSimulated &&
           num_instructions >= kInstructionBudget) ||
          (num_simulated > 0 && num_instructions >= kMostLowered)) {
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

  // List-scheduled variants of the pipelines that come nearest, if their bubble
  // is what they lose by.
  absl::Status ConsiderListed() {
    const std::string& asked_for = space_.constraints.schedule;
    const bool is_asked_for =
        asked_for == ScheduleName(Schedule::kListScheduled);
    if (!is_asked_for && asked_for != "auto") return absl::OkStatus();
    std::vector<Candidate> pipelines = FastestFirst();
    std::erase_if(pipelines, [](const Candidate& candidate) {
      return candidate.layout.pipeline == 1 ||
             candidate.layout.shards_gradients();
    });
    if (is_asked_for) candidates_.clear();
    std::vector<Layout> considered;
    for (Candidate& pipeline : pipelines) {
      if (considered.size() == kMostListed) break;
      Prediction& prediction = pipeline.prediction;
      const Candidate* fastest = Fastest();
      pipeline.layout.schedule = Schedule::kOneForwardOneBackward;
      if ((fastest != nullptr &&
           prediction.step_time_s * (1 - prediction.bubble_fraction) >=
               fastest->prediction.step_time_s) ||
          absl::c_linear_search(considered, pipeline.layout)) {
        continue;
      }
      considered.push_back(pipeline.layout);
      ASSIGN_OR_RETURN(
          const std::optional<Layout> listed,
          ListScheduledVariant(space_.model, pipeline.layout, cost_,
                               memory_limit_ - prediction.overhead_bytes));
      if (!listed.has_value()) continue;
      RETURN_IF_ERROR(Consider({*listed}));
    }
    if (!candidates_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.schedule is list, but no layout of ", input_.num_devices,
        " devices can have it: it takes two stages at least, ZeRO 0 or 1, and "
        "memory for one micro-batch a stage; set layout.schedule to auto"));
  }

  // The fastest layouts with what copy engines can do.
  absl::Status ConsiderCopyEngines() {
    if (copy_engines_ != CopyEngineChoice::kIfFaster) return absl::OkStatus();
    std::vector<Layout> fastest;
    for (const Candidate& candidate : FastestFirst()) {
      if (fastest.size() < kMostWithCopyEngines &&
          CopyEngineUseOf(candidate.layout).any()) {
        fastest.push_back(candidate.layout);
      }
    }
    UseCopyEngines(&fastest);
    return Consider(fastest);
  }

  // The fastest layouts of several tensor ranks with their tokens in chunks.
  absl::Status ConsiderChunks() {
    if (!MayChooseChunks(input_.job)) return absl::OkStatus();
    std::vector<Layout> chunked;
    size_t num_considered = 0;
    for (const Candidate& candidate : FastestFirst()) {
      if (num_considered == kMostWithChunks) break;
      const std::vector<Layout> variants =
          ChunkedVariants(space_.model, candidate.layout);
      if (!variants.empty()) ++num_considered;
      chunked.insert(chunked.end(), variants.begin(), variants.end());
    }
    return Consider(chunked);
  }

  // Of what was simulated.
  std::vector<Candidate> FastestFirst() const {
    std::vector<Candidate> simulated = candidates_;
    std::erase_if(simulated, [](const Candidate& c) { return !c.simulated; });
    absl::c_stable_sort(simulated, [](const Candidate& a, const Candidate& b) {
      return a.prediction.step_time_s < b.prediction.step_time_s;
    });
    return simulated;
  }

  const Candidate* Fastest() const {
    const Candidate* fastest = nullptr;
    for (const Candidate& candidate : candidates_) {
      if (!candidate.simulated) continue;
      if (fastest == nullptr ||
          candidate.prediction.step_time_s < fastest->prediction.step_time_s) {
        fastest = &candidate;
      }
    }
    return fastest;
  }

  // By what share the fastest of the candidates that were not simulated beats
  // the chosen one's closed form; those that were have lost to it.
  double OptimalityGap(double chosen_s) const {
    double fastest_s = chosen_s;
    for (const Candidate& candidate : candidates_) {
      if (candidate.simulated || !candidate.fits) continue;
      fastest_s = std::min(fastest_s, candidate.prediction.step_time_s);
    }
    return chosen_s / fastest_s - 1;
  }

  absl::StatusOr<Plan> MakePlan(const Candidate& chosen) {
    Plan plan;
    plan.layout = chosen.layout;
    plan.prediction = chosen.prediction;
    plan.layouts_considered = static_cast<int64_t>(candidates_.size());
    if (plan.layout.recompute != Recompute::kNone) {
      plan.recompute_prices =
          BestFirst(PriceRecompute(space_.model, plan.layout, cost_));
    }
    // Kept programs of all candidates would be hundreds of megabytes; lowering
    // the one again is cheap.
    ASSIGN_OR_RETURN(const std::vector<Program> programs,
                     BuildTrainingPrograms(space_.model, chosen.layout));
    plan.program_hashes = HashesOf(programs);
    ASSIGN_OR_RETURN(plan.timeline, SimulatePrograms(programs, cost_));

    std::vector<const Candidate*> losers;
    plan.all_simulated = true;
    for (const Candidate& candidate : candidates_) {
      if (candidate.fits && !candidate.simulated) plan.all_simulated = false;
      if (&candidate != &chosen) losers.push_back(&candidate);
    }
    std::stable_sort(losers.begin(), losers.end(),
                     [](const Candidate* a, const Candidate* b) {
                       if (a->fits != b->fits) return a->fits;
                       return a->prediction.step_time_s <
                              b->prediction.step_time_s;
                     });
    const Prediction estimated = Estimated(chosen.layout);
    plan.optimality_gap = OptimalityGap(estimated.step_time_s);
    for (const Candidate* loser : losers) {
      if (loser->is_too_large) continue;
      Alternative alternative{.layout = loser->layout,
                              .fits = loser->fits,
                              .simulated = loser->simulated,
                              .prediction = loser->prediction};
      SayWhyItLost(loser->simulated ? chosen.prediction : estimated,
                   memory_limit_, loser->simulated ? "" : kByClosedForm,
                   &alternative);
      plan.alternatives.push_back(std::move(alternative));
    }
    return plan;
  }

  absl::StatusOr<Plan> PlanAllAxes() const {
    ASSIGN_OR_RETURN(PlannedChoice choice,
                     FindPlannedLayouts(input_, cost_, memory_limit_));
    Plan plan;
    const Alternative& chosen = choice.best.front();
    plan.layout = chosen.layout;
    plan.prediction = chosen.prediction;
    plan.recompute_prices = std::move(choice.recompute_prices);
    plan.by_passes = chosen.by_passes;
    plan.pipeline_outermost = chosen.pipeline_outermost;
    plan.simulated = chosen.simulated;
    plan.listed_bytes = chosen.listed_bytes;
    // Orders of passes alone are no worker's either.
    plan.plan_only = plan.pipeline_outermost || !plan.listed_bytes.empty() ||
                     !CheckExecutable(space_.model, plan.layout).ok();
    plan.num_idle_devices = input_.num_devices - plan.layout.num_ranks();
    const bool can_be_lowered =
        plan.listed_bytes.empty() && CanBeLowered(space_.model, chosen, cost_);
    plan.alternatives.assign(std::make_move_iterator(choice.best.begin() + 1),
                             std::make_move_iterator(choice.best.end()));
    plan.layouts_considered = choice.layouts_considered;
    plan.optimality_gap = choice.optimality_gap;
    if (!input_.lowers || !can_be_lowered) return plan;
    const absl::Status too_large = CheckProgramSize(space_.model, plan.layout);
    if (!too_large.ok()) {
      plan.warnings.push_back(
          absl::StrCat("no run takes this plan: ", too_large.message()));
      return plan;
    }
    // What was chosen is now told exactly.
    ASSIGN_OR_RETURN(plan.prediction, PredictLayout(space_.model, plan.layout,
                                                    cost_, &plan.timeline));
    RETURN_IF_ERROR(ChooseCopyEngines(input_.job, cost_, &plan));
    RETURN_IF_ERROR(ChooseTensorChunks(input_.job, cost_, &plan));
    ASSIGN_OR_RETURN(const std::vector<Program> programs,
                     BuildTrainingPrograms(space_.model, plan.layout));
    plan.program_hashes = HashesOf(programs);
    plan.prediction.closed_form = chosen.prediction.closed_form;
    if (!std::exchange(plan.simulated, true)) {
      for (Alternative& alternative : plan.alternatives) {
        SayWhyItLost(chosen.by_passes.value_or(chosen.prediction),
                     memory_limit_, kByClosedForm, &alternative);
      }
    }
    const int64_t need = plan.prediction.memory_bytes();
    if (need > memory_limit_) {
      plan.warnings.push_back(absl::StrCat(
          "the Programs of the layout hold ", FormatBytes(need), ", ",
          FormatBytes(need - memory_limit_),
          " more than a device has, though by the closed form it fits; set "
          "resources.memory_per_device to ",
          (memory_limit_ -
           (need - plan.prediction.closed_form->memory.total())) /
              kMiB,
          " MiB for one that does"));
    }
    return plan;
  }

  // Only reached when every candidate was lowered, so all have their memory.
  absl::Status ExplainNothingFits() const {
    const Candidate& smallest = *std::min_element(
        candidates_.begin(), candidates_.end(),
        [](const Candidate& a, const Candidate& b) {
          return std::make_tuple(a.is_too_large, a.prediction.memory_bytes()) <
                 std::make_tuple(b.is_too_large, b.prediction.memory_bytes());
        });
    if (smallest.is_too_large) {
      return absl::InvalidArgumentError(too_large_.message());
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
        FormatBytes(memory_limit_), " a device: the smallest, ",
        LayoutToString(smallest.layout), ", needs ", FormatBytes(need), ", ",
        FormatBytes(need - memory_limit_), " more; smallest change: ", change,
        too_large_.ok() ? ""
                        : absl::StrCat("; of smaller micro-batches ",
                                       too_large_.message())));
  }

  // The least power-of-two multiple of the devices on which some layout fits.
  // Small micro-batches need the least, so only those of one are tried.
  std::optional<int32_t> DevicesThatFit() const {
    for (int32_t factor = 2; factor <= 16; factor *= 2) {
      LayoutSpace more = space_;
      more.num_devices = input_.num_devices * factor;
      if (!more.constraints.micro_batch) more.constraints.micro_batch = 1;
      for (const Layout& layout : EnumerateLayouts(more)) {
        const std::vector<Layout> smaller = SmallerLayouts(more, layout);
        const absl::StatusOr<std::vector<Program>> programs =
            BuildTrainingPrograms(space_.model,
                                  smaller.empty() ? layout : smaller.back());
        if (!programs.ok()) continue;
        Prediction prediction;
        FillMemory(*programs, cost_.profile().memory_overhead, &prediction);
        if (prediction.memory_bytes() <= memory_limit_) {
          return more.num_devices;
        }
      }
    }
    return std::nullopt;
  }

  const SearchInput& input_;
  const CostModel& cost_;
  LayoutSpace space_;
  const int64_t memory_limit_;
  const CopyEngineChoice copy_engines_;
  absl::StatusOr<StepModel> step_model_;  // An error for most CPUs' profiles.
  // What Recomputes() knows, by tensor and micro-batch.
  std::map<std::pair<int32_t, int32_t>, std::vector<Recompute>> recomputes_;
  std::vector<Candidate> candidates_;  // The simpler first.
  absl::Status too_large_;  // The first of what CheckProgramSize() said.
};

}  // namespace

bool NeedsAllAxes(const JobSpec& job, int32_t num_devices,
                  const HardwareProfile& profile) {
  const LayoutSpace space = LayoutSpaceOf(job, num_devices);
  return !ExecutableSpace(space).has_value() || profile.gemms.empty() ||
         (num_devices > profile.provenance.num_ranks &&
          profile.device.is_given() && !profile.network.empty());
}

absl::StatusOr<Plan> FindPlan(const SearchInput& input, const CostModel& cost) {
  ASSIGN_OR_RETURN(Plan plan, Search(input, cost).Run());
  WarnOfApproximation(input.job, &plan);
  return plan;
}

}  // namespace millrace
