// Which instructions of a training step meet, of one representative of each
// pipeline stage, as planner/simulate/simulate_instructions.h runs them. Those
// of all ranks: rank_steps.h.

#ifndef MILLRACE_PLANNER_PROGRAM_COLLECTIVE_MATCHES_H_
#define MILLRACE_PLANNER_PROGRAM_COLLECTIVE_MATCHES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/program/program.h"

namespace millrace {

struct StageInstruction {
  int32_t stage;
  InstructionId id;
};

// Instructions that start as they arrive and end together: the two ends of a
// transfer, or a world collective's stages.
using StageMeeting = std::vector<StageInstruction>;

// `programs[i]` is stage i's. Returns Internal if the ends of two stages have
// not equally many transfers, or not all stages a world collective.
absl::StatusOr<std::vector<StageMeeting>> StageMeetingsOf(
    std::span<const Program* const> programs);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_COLLECTIVE_MATCHES_H_
