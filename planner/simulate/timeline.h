// Start and end of each instruction of one step, predicted or measured: one
// format for both, so that the two can be laid over each other.

#ifndef MILLRACE_PLANNER_SIMULATE_TIMELINE_H_
#define MILLRACE_PLANNER_SIMULATE_TIMELINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "planner/program/program.h"

namespace millrace {

// Seconds from the start of the step. A collective or transfer starts when the
// rank reaches it, so waiting for a peer is inside the interval.
struct TimelineEvent {
  InstructionId instruction;
  double start_s;
  double end_s;
};

struct RankTimeline {
  Rank rank;
  int32_t stage;
  std::vector<TimelineEvent> events;  // By start.
  // When the rank began the step, on one clock for all ranks: seconds after the
  // first rank did, and by how much that may be off. Of a rank alone: by its
  // host's clock. 0 where it is not known.
  double begin_s = 0;
  double clock_uncertainty_s = 0;
};

struct Timeline {
  double step_time_s = 0;
  std::vector<RankTimeline> ranks;
};

// Where one rank's step went; the parts sum to the step time. Read off the
// compute lane: whenever it is idle, the instruction it waits for says why, or
// what that one in turn waited for.
struct TimeBreakdown {
  double compute_s = 0;
  double exposed_tensor_comm_s = 0;  // Waiting for a kTensorComm instruction.
  double exposed_data_comm_s = 0;
  // Waiting for a transfer or for another stage to end its passes: warm-up,
  // drain, imbalance.
  double bubble_s = 0;
  double data_s = 0;   // Waiting for the host lane.
  double other_s = 0;  // Before the first and after the last instruction, and
                       // gaps without a pending wait.
};
// `step_time_s`: of the whole step; by default (0) until the rank's last event.
TimeBreakdown BreakDown(const Program& program, const RankTimeline& timeline,
                        double step_time_s = 0);

// From when each rank began by a common clock to when it began after the first.
// If one is not known, none is.
void AlignBegins(Timeline* timeline);

// {"step_time_s", "ranks": [{"rank", "stage", "events": [[instruction, start,
// end], ...]}]}, and "begin_s" and "clock_uncertainty_s" of ranks if begins are
// known.
std::string TimelineToJson(const Timeline& timeline);
// Returns InvalidArgument saying what is missing or of a wrong type.
absl::StatusOr<Timeline> TimelineFromJson(absl::string_view json);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_TIMELINE_H_
