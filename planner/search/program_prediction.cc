#include "planner/search/program_prediction.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "planner/lower/lower.h"
#include "planner/search/prediction.h"
#include "planner/simulate/passes_of_programs.h"
#include "planner/simulate/simulate_instructions.h"

namespace millrace {
namespace {

int64_t BufferBytes(const Program& program, BufferId buffer) {
  return buffer < 0 ? 0 : program.buffers[static_cast<size_t>(buffer)].bytes;
}

// The compute lane's time of recomputing.
double RecomputeSeconds(const Program& program, const RankTimeline& timeline) {
  double seconds = 0;
  for (const TimelineEvent& event : timeline.events) {
    const Instruction& instruction =
        program.instructions[static_cast<size_t>(event.instruction)];
    if (instruction.phase == Phase::kRecompute &&
        instruction.lane == Lane::kCompute) {
      seconds += event.end_s - event.start_s;
    }
  }
  return seconds;
}

}  // namespace

absl::Status CheckProfile(const Layout& layout, const CostModel& cost) {
  const HardwareProfile& profile = cost.profile();
  if (!cost.HasTables()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "hardware profile '", profile.name,
        "' is a data sheet's and has no gemms table to simulate a layout "
        "with; measure one with millrace profile JOB, or plan with "
        "--plan-only"));
  }
  return cost.CheckTablesPrice(layout);
}

namespace {

int64_t OverheadBytes(const Program& program, const MemoryOverhead& overhead) {
  const int32_t communicators = NumCommunicators(program.layout, program.stage);
  if (communicators == 0) return overhead.process;
  return overhead.process + overhead.first_communicator +
         (communicators - 1) * overhead.communicator;
}

}  // namespace

int64_t StageBytes(const Program& program, const MemoryOverhead& overhead) {
  return program.persistent_arena_bytes + program.step_arena_bytes +
         OverheadBytes(program, overhead);
}

void FillMemory(std::span<const Program> programs,
                const MemoryOverhead& overhead, Prediction* prediction) {
  const Program& largest = *std::max_element(
      programs.begin(), programs.end(), [](const Program& a, const Program& b) {
        return a.persistent_arena_bytes + a.step_arena_bytes <
               b.persistent_arena_bytes + b.step_arena_bytes;
      });
  prediction->persistent_bytes = largest.persistent_arena_bytes;
  prediction->step_bytes = largest.step_arena_bytes;
  prediction->overhead_bytes = OverheadBytes(largest, overhead);
  prediction->parameter_bytes =
      BufferBytes(largest, largest.parameters_buffer) +
      BufferBytes(largest, largest.norms_buffer) +
      BufferBytes(largest, largest.float8_weights_buffer);
  prediction->gradient_bytes = BufferBytes(largest, largest.gradients_buffer);
  prediction->optimizer_bytes =
      BufferBytes(largest, largest.exp_avg_buffer) +
      BufferBytes(largest, largest.exp_avg_sq_buffer) +
      BufferBytes(largest, largest.master_buffer);
}

absl::StatusOr<std::vector<uint64_t>> HashesOf(
    const ModelSpec& model, std::span<const Program> programs,
    const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const std::vector<Program> shorter,
                   BuildShorterPrograms(model, programs.front().layout, stop));
  std::vector<uint64_t> hashes;
  for (const Program& program : programs) {
    hashes.push_back(ProgramHash(program));
  }
  for (const Program& program : shorter) {
    hashes.push_back(ProgramHash(program));
  }
  return hashes;
}

namespace {

absl::StatusOr<std::vector<StageSimulation>> StagesOf(
    std::span<const Program> programs, const CostModel& cost,
    const std::stop_token& stop) {
  std::vector<StageSimulation> stages(programs.size());
  const auto fill = [&](int64_t i) -> absl::Status {
    RETURN_IF_ERROR(CheckNotStopped(stop));
    const Program& program = programs[i];
    std::vector<bool> by_copy_engines;
    for (const Instruction& in : program.instructions) {
      by_copy_engines.push_back(
          cost.IsByCopyEngines(program.layout, in.kind, in.attributes));
    }
    stages[i] = {.program = &program,
                 .seconds = cost.ProgramSeconds(program),
                 .by_copy_engines = std::move(by_copy_engines)};
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ParallelFor(static_cast<int64_t>(stages.size()),
                              NumComputeThreads(), fill));
  return stages;
}

SimulationOptions OptionsOf(const HardwareProfile& profile) {
  return {.compute_contention = profile.compute_contention,
          .ranks_per_host = profile.ranks_per_host,
          .overlap = profile.overlap,
          .copy_engine_overlap = profile.copy_engine_overlap,
          .arrival_spread = profile.waits.arrival_spread};
}

}  // namespace

absl::StatusOr<Timeline> SimulatePrograms(std::span<const Program> programs,
                                          const CostModel& cost,
                                          const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const std::vector<StageSimulation> stages,
                   StagesOf(programs, cost, stop));
  ASSIGN_OR_RETURN(Timeline timeline,
                   Simulate(stages, OptionsOf(cost.profile()), stop));
  timeline.step_time_s += cost.profile().waits.between_steps_s;
  return timeline;
}

absl::StatusOr<PassStep> PassesOfPrograms(std::span<const Program> programs,
                                          const CostModel& cost) {
  ASSIGN_OR_RETURN(const std::vector<StageSimulation> stages,
                   StagesOf(programs, cost, /*stop=*/{}));
  return StepOfPrograms(stages, OptionsOf(cost.profile()));
}

void FillSimulated(const ModelSpec& model, std::span<const Program> programs,
                   const CostModel& cost, const Timeline& timeline,
                   Prediction* prediction) {
  FillTime(model, programs.front().layout, cost, PriceModel::kInstructions,
           timeline.step_time_s, prediction);
  double bubble_s = 0, exposed_s = 0, recompute_s = 0;
  for (const RankTimeline& rank : timeline.ranks) {
    const TimeBreakdown part = BreakDown(
        programs[static_cast<size_t>(rank.stage)], rank, timeline.step_time_s);
    bubble_s += part.bubble_s;
    recompute_s +=
        RecomputeSeconds(programs[static_cast<size_t>(rank.stage)], rank);
    exposed_s += part.exposed_tensor_comm_s + part.exposed_data_comm_s;
  }
  const double all_s =
      timeline.step_time_s * static_cast<double>(timeline.ranks.size());
  prediction->bubble_fraction = bubble_s / all_s;
  prediction->exposed_communication_fraction = exposed_s / all_s;
  prediction->recompute_fraction = recompute_s / all_s;
}

absl::StatusOr<Prediction> PredictLayout(const ModelSpec& model,
                                         const Layout& layout,
                                         const CostModel& cost,
                                         Timeline* timeline,
                                         std::vector<Program>* programs) {
  RETURN_IF_ERROR(ValidateLayout(model, layout, layout.global_batch()));
  RETURN_IF_ERROR(CheckProfile(layout, cost));
  ASSIGN_OR_RETURN(std::vector<Program> lowered,
                   BuildTrainingPrograms(model, layout));
  ASSIGN_OR_RETURN(*timeline, SimulatePrograms(lowered, cost));
  Prediction prediction;
  FillMemory(lowered, cost.profile().memory_overhead, &prediction);
  FillSimulated(model, lowered, cost, *timeline, &prediction);
  if (programs != nullptr) *programs = std::move(lowered);
  return prediction;
}

}  // namespace millrace
