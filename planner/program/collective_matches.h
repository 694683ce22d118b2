// Matches the instructions of different pipeline stages that belong to one
// transfer or world collective. It sees one representative rank for each stage,
// as the simulator does; planner/learn/rank_steps.h matches all ranks.

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
