// Explains why a step overruns when ranks wait for each other: which collective
// or transfer hangs, who takes part and who is missing.
//
// NCCL cannot tell, since a kernel that waits for a peer looks the same whoever
// is late. The Programs state what every rank does in which order, so each
// rank's own progress is enough to find the call that all others wait for.

#ifndef MILLRACE_WORKER_CUDA_NCCL_NCCL_WATCH_H_
#define MILLRACE_WORKER_CUDA_NCCL_NCCL_WATCH_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "planner/program/program.h"
#include "worker/communicate/rendezvous_store.h"

namespace millrace {

// The progress of one rank.
struct RankProgress {
  int64_t step = 0;  // The one it is in.
  // Instructions of each lane that have ended in this step; lanes are in order.
  std::array<int32_t, kNumLanes> completed{};
  friend bool operator==(const RankProgress&, const RankProgress&) = default;
};
std::string ProgressToString(const RankProgress& progress);
absl::StatusOr<RankProgress> ProgressFromString(absl::string_view text);

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
// in a call. `programs`: one a stage, all of the same kind; `progress`: by
// rank.
std::vector<StuckCall> FindStuckCalls(
    absl::Span<const Program* const> programs,
    absl::Span<const std::optional<RankProgress>> progress);

// Explains why a rank's step overran: tells the others through the store how
// far this rank got, waits `patience` for their progress, and returns it all in
// a DeadlineExceeded. Call it once a generation, which the error ends.
absl::Status ExplainOverrun(absl::Span<const Program* const> programs,
                            Rank rank, const RankProgress& progress,
                            RendezvousStore& store, absl::Duration patience);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_NCCL_NCCL_WATCH_H_
