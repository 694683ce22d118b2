// Finds why ranks that wait for each other hang: which collective or transfer
// they wait in, who takes part and who is missing.
//
// A call that waits for a peer looks the same whoever is late. The Programs
// state what every rank does in which order, so each rank's own progress is
// enough to find the call that all others wait for.

#ifndef MILLRACE_FAULT_HANG_H_
#define MILLRACE_FAULT_HANG_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"
#include "planner/program/program.h"

namespace millrace {

// The progress of one rank.
struct RankProgress {
  int64_t step = 0;  // The one it is in.
  // Instructions of each lane that have ended in this step; lanes are in order.
  std::array<int32_t, kNumLanes> completed{};
  friend bool operator==(const RankProgress&, const RankProgress&) = default;
};

// A call on a communicator that has not ended on every member.
struct StuckCall {
  int64_t step;
  std::string communicator;  // "tensor group (ranks 0, 1)".
  // "all_gather 'layers.2/attention/gather' of micro-batch 3".
  std::string call;
  std::vector<Rank> arrived;
  // The members that have not come, and where each of them is instead. If
  // empty, all have come, so the link between them or NCCL itself hangs.
  std::vector<Rank> missing;
  std::vector<std::string> whereabouts;

  std::string ToString() const;
};

// Finds the calls that are the root of the hang. Some ranks wait in such a
// call, and no missing rank is itself waiting in another call: it is silent, or
// busy computing. A rank without progress sent nothing. Empty if no rank waits
// in a call. `programs`: of all ranks, by
// ProgramIdx(), all of the same kind; `progress`: by rank.
std::vector<StuckCall> FindStuckCalls(
    absl::Span<const Program* const> programs,
    absl::Span<const std::optional<RankProgress>> progress);

// Who holds up a job in which nobody gets on.
struct Hang {
  // The ranks that others wait for and that wait for nobody themselves, by
  // rank. Empty if all came to a call and it does not end.
  std::vector<Rank> culprits;
  // Where each of the culprits is: "it has not come so far, at gemm ...".
  std::vector<std::string> whereabouts;
  std::string explanation;  // The calls in question, for people.
};

// As FindStuckCalls(), of which it makes a verdict. If nobody waits in a call,
// as in a job of one rank, the culprits are the ranks that are not at the end
// of their step.
Hang ExplainStandstill(absl::Span<const Program* const> programs,
                       absl::Span<const std::optional<RankProgress>> progress);

}  // namespace millrace

#endif  // MILLRACE_FAULT_HANG_H_
