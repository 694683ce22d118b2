// Lets the members of NCCL communicators find each other through a generation's
// store, and says who is missing.

#ifndef MILLRACE_WORKER_CUDA_NCCL_NCCL_RENDEZVOUS_H_
#define MILLRACE_WORKER_CUDA_NCCL_NCCL_RENDEZVOUS_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "planner/program/membership.h"
#include "worker/communicate/rendezvous_store.h"

namespace millrace {

// When a wait for other ranks ends: at a deadline, or when an abort is
// requested.
struct NcclPatience {
  absl::Time deadline;     // On MonotonicNow()'s clock.
  absl::Duration timeout;  // Origin of the deadline, for messages.
  const std::atomic<bool>& abort_requested;

  // Aborted or DeadlineExceeded, beginning with `what`, once it is over.
  absl::Status Check(const std::string& what) const;
};

// The value of `key`, which may take long to come: waits in steps, so that it
// can be given up. `what` begins the errors.
absl::StatusOr<std::string> GetPatiently(const std::string& key,
                                         const std::string& what,
                                         RendezvousStore& store,
                                         const NcclPatience& patience);

// Tells the others that `rank` is here, and waits for all members. The
// DeadlineExceeded names a communicator and the members that did not come.
absl::Status MeetMembers(const std::vector<Membership>& memberships, Rank rank,
                         RendezvousStore& store, const NcclPatience& patience);

// The communicator's id, any bytes: the first member makes it, the others get
// it from the store.
absl::StatusOr<std::string> ShareId(
    const Membership& membership,
    absl::FunctionRef<absl::StatusOr<std::string>()> make_id,
    RendezvousStore& store, const NcclPatience& patience);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_NCCL_NCCL_RENDEZVOUS_H_
