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
  // By InstructionId. Begins when all that the instruction waits for had ended,
  // or when it started if `from_start`.
  std::vector<TimeSpan> spans;
  std::vector<double> gaps_s;  // Of the compute lane: from then to the start.
};

// One rank's instruction in a collective or transfer.
struct Participant {
  size_t rank_idx;
  InstructionId id;
};
// One collective or transfer: all who take part, two at least.
using Meeting = std::vector<Participant>;

// Indexed by rank. Clocks of ranks count from their own start of the step; the
// ends of collectives, which come at one time, set them by rank 0's. Errors as
// ObserveStep's (planner/learn/step_observation.h).
absl::StatusOr<std::vector<RankStep>> AlignRanks(
    std::span<const Program> programs, const Timeline& timeline,
    bool from_start);

// The meetings of all stages' Programs: tensor, data and world collectives, and
// transfers.
std::vector<Meeting> MeetingsOf(std::span<const Program> programs);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_RANK_STEPS_H_
