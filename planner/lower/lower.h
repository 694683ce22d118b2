// From Layout to Program: op-level graphs with sharded shapes, pipeline order,
// lanes, waits and arena offsets. Deterministic: equal inputs give equal
// Programs.

#ifndef MILLRACE_PLANNER_LOWER_LOWER_H_
#define MILLRACE_PLANNER_LOWER_LOWER_H_

#include <stop_token>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/program/program.h"

namespace millrace {

// A rank's training step; of its coordinates, stage and data replica matter.
// `layout` must pass ValidateLayout. A Program that would be too large gives
// CheckProgramSize()'s status. Where stages have one order in common
// (planner/lower/common_order.h), all of them are lowered. Cancelled once a
// stop is requested.
absl::StatusOr<Program> BuildTrainingProgram(const ModelSpec& model,
                                             const Layout& layout,
                                             const MeshCoordinates& rank,
                                             const std::stop_token& stop = {});

// The same of a stage's ranks in data replica 0, which has the most
// micro-batches.
absl::StatusOr<Program> BuildTrainingProgram(const ModelSpec& model,
                                             const Layout& layout,
                                             int32_t stage,
                                             const std::stop_token& stop = {});

// Data replica 0's Programs of all stages, in order, lowered side by side on
// all cores: those that take the longest. It is also quicker than one by one
// where the order of passes is made for all at once. Cancelled once a stop is
// requested.
absl::StatusOr<std::vector<Program>> BuildTrainingPrograms(
    const ModelSpec& model, const Layout& layout,
    const std::stop_token& stop = {});

// By stage, the Programs of the data replicas of an uneven layout that have
// fewer micro-batches; empty if all have the same. Cancelled once a stop is
// requested.
absl::StatusOr<std::vector<Program>> BuildShorterPrograms(
    const ModelSpec& model, const Layout& layout,
    const std::stop_token& stop = {});
// The Programs of all ranks, which ProgramIdx() tells apart.
absl::StatusOr<std::vector<Program>> BuildProgramsOfRanks(
    const ModelSpec& model, const Layout& layout);

// Forward only, one micro-batch a step and data replica; its loss scalar is
// the mean over the ranks' micro-batches. Shares the persistent arena's layout
// with the training Program of the same stage, so both run on one arena.
absl::StatusOr<Program> BuildValidationProgram(const ModelSpec& model,
                                               const Layout& layout,
                                               int32_t stage);

// Copies the master weights to the bf16 parameters; has no instructions in
// fp32. Shares the persistent arena in the same way.
absl::StatusOr<Program> BuildPublishProgram(const ModelSpec& model,
                                            const Layout& layout,
                                            int32_t stage);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_LOWER_H_
