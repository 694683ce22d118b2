// Describes Programs to the pass grain: what their passes, transfers, gathers,
// reductions and optimizer cost, each from its own instructions run by the
// instruction grain.

#ifndef MILLRACE_PLANNER_SIMULATE_PASSES_OF_PROGRAMS_H_
#define MILLRACE_PLANNER_SIMULATE_PASSES_OF_PROGRAMS_H_

#include <span>

#include "absl/status/statusor.h"
#include "planner/simulate/simulate_instructions.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

// The step that `stages` run, with the same order of passes. Errors are those
// of Simulate().
absl::StatusOr<ClusterStep> StepOfPrograms(
    std::span<const StageSimulation> stages, const SimulationOptions& options);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_PASSES_OF_PROGRAMS_H_
