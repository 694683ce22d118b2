// Prepares a measured step to learn from it: puts all ranks on one clock,
// finds when each instruction could have begun, and matches the participants of
// each collective.

#ifndef MILLRACE_PLANNER_LEARN_RANK_STEPS_H_
#define MILLRACE_PLANNER_LEARN_RANK_STEPS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/program/program.h"
#include "planner/simulate/timeline.h"

namespace millrace {

struct TimeSpan {
  double begin_s;
  double end_s;
  double seconds() const { return end_s - begin_s; }
};

struct RankStep {
  const Program* program;
  // Indexed by InstructionId. A span begins when the last instruction that this
  // one waits for ended, or at its own start if `from_start`.
  std::vector<TimeSpan> spans;
  std::vector<double> gaps_s;  // Compute lane: from span.begin_s to the start.
};

// One rank's instruction in a collective or transfer.
struct Participant {
  size_t rank_idx;
  InstructionId id;
};
// All participants of one collective or transfer, at least two.
using Meeting = std::vector<Participant>;

// `programs` are those of all ranks, by ProgramIdx(), here and below.
// Returns the steps indexed by rank. Each rank's clock counts from its own
// start of the step. Collectives end at one moment on all ranks, and these ends
// convert all times to rank 0's clock. Returns the errors of ObserveStep()
// (planner/learn/step_observation.h).
absl::StatusOr<std::vector<RankStep>> AlignRanks(
    std::span<const Program> programs, const Timeline& timeline,
    bool from_start);

// Returns the meetings of all ranks' Programs: tensor, data and world
// collectives, and transfers.
std::vector<Meeting> MeetingsOf(std::span<const Program> programs);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_RANK_STEPS_H_
