// Explains why a step overruns when ranks wait for each other: ranks tell each
// other through the generation's store how far they are, and fault/hang.h finds
// the call that all wait for.

#ifndef MILLRACE_WORKER_CUDA_NCCL_NCCL_WATCH_H_
#define MILLRACE_WORKER_CUDA_NCCL_NCCL_WATCH_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "fault/hang.h"
#include "planner/program/program.h"
#include "worker/communicate/rendezvous_store.h"

namespace millrace {

std::string ProgressToString(const RankProgress& progress);
absl::StatusOr<RankProgress> ProgressFromString(absl::string_view text);

// Explains why a rank's step overran: tells the others through the store how
// far this rank got, waits `patience` for their progress, and returns it all in
// a DeadlineExceeded. Call it once a generation, which the error ends.
absl::Status ExplainOverrun(absl::Span<const Program* const> programs,
                            Rank rank, const RankProgress& progress,
                            RendezvousStore& store, absl::Duration patience);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_NCCL_NCCL_WATCH_H_
