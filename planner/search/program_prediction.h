// Predicts a layout from its Programs, one for each stage: memory from their
// arenas, time by simulation.

#ifndef MILLRACE_PLANNER_SEARCH_PROGRAM_PREDICTION_H_
#define MILLRACE_PLANNER_SEARCH_PROGRAM_PREDICTION_H_

#include <cstdint>
#include <span>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/profile/profile.h"
#include "planner/program/program.h"
#include "planner/search/plan.h"
#include "planner/simulate/simulate_passes.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// Checks that the profile can price the layout's Programs. FailedPrecondition
// for a profile without tables, of another precision, or of one rank where the
// layout has several.
absl::Status CheckProfile(const Layout& layout, const CostModel& cost);

// Bytes of one rank of the stage, including those of communicators and of the
// process.
int64_t StageBytes(const Program& program, const MemoryOverhead& overhead);

// Memory of the most loaded stage, what communicators and the process take
// beside its arenas included.
void FillMemory(std::span<const Program> programs,
                const MemoryOverhead& overhead, Prediction* prediction);

// The ProgramHash() of the Programs of all ranks, which ProgramIdx() tells
// apart. `programs` are BuildTrainingPrograms(), the others are lowered here.
// Cancelled once a stop is requested.
absl::StatusOr<std::vector<uint64_t>> HashesOf(
    const ModelSpec& model, std::span<const Program> programs,
    const std::stop_token& stop = {});

// Simulates by instructions. Cancelled once a stop is requested.
absl::StatusOr<Timeline> SimulatePrograms(std::span<const Program> programs,
                                          const CostModel& cost,
                                          const std::stop_token& stop = {});
// The same step for simulation by passes.
absl::StatusOr<PassStep> PassesOfPrograms(std::span<const Program> programs,
                                          const CostModel& cost);

// Times and shares, from SimulatePrograms' timeline.
void FillSimulated(const ModelSpec& model, std::span<const Program> programs,
                   const CostModel& cost, const Timeline& timeline,
                   Prediction* prediction);

// Lowers and simulates one layout; keeps its Programs in `programs` unless that
// is null. Errors are ValidateLayout's, CheckProfile's and those of lowering.
absl::StatusOr<Prediction> PredictLayout(
    const ModelSpec& model, const Layout& layout, const CostModel& cost,
    Timeline* timeline, std::vector<Program>* programs = nullptr);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_PROGRAM_PREDICTION_H_
