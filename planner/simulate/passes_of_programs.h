// Makes the ops of the pass grain of Programs. Communication of the data axis
// and transfers remain ops of their own. The compute lane, with what the tensor
// and host lanes do for it, becomes passes, each cut only where it waits for
// such communication or lets some begin. The instruction grain runs each pass
// by itself to say how long its parts take: alone, beside traffic, and beside
// kernels that wait for their peer. Passes that do alike are run once.

#ifndef MILLRACE_PLANNER_SIMULATE_PASSES_OF_PROGRAMS_H_
#define MILLRACE_PLANNER_SIMULATE_PASSES_OF_PROGRAMS_H_

#include <span>

#include "absl/status/statusor.h"
#include "planner/simulate/simulate_instructions.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

// The step that `stages` run, by its ops (PassStep::ops). Errors are those
// of Simulate().
absl::StatusOr<PassStep> StepOfPrograms(std::span<const StageSimulation> stages,
                                        const SimulationOptions& options);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_PASSES_OF_PROGRAMS_H_
