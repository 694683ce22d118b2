// Lets the members of NCCL communicators find each other through a generation's
// store, and says who is missing.

#ifndef MILLRACE_WORKER_CUDA_NCCL_NCCL_RENDEZVOUS_H_
#define MILLRACE_WORKER_CUDA_NCCL_NCCL_RENDEZVOUS_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "planner/layout/layout.h"
#include "planner/program/program.h"
#include "worker/communicate/rendezvous_store.h"

namespace millrace {

// One rank's place in one communicator.
struct NcclMembership {
  Group group;  // kPipeline for transfers.
  // For transfers, this rank's lane; the other end has the matching one.
  std::optional<Lane> transfer_lane;
  std::vector<Rank> members;  // For transfers the earlier stage comes first.
  int32_t index;              // This rank's index among them.

  // For transfers, whether this rank sends.
  bool sends() const {
    return transfer_lane == Lane::kSendNext ||
           transfer_lane == Lane::kSendPrevious;
  }
  // The same on every member, and of no other communicator.
  std::string Key() const;
  // "tensor group (ranks 0, 1)", "transfers to the next stage (ranks 0, 4)".
  std::string Name() const;
};

// The group whose communicator carries the collectives of `group`. The data
// group uses the world's communicator if both have the same ranks, since they
// share a lane.
Group ServingGroup(const Layout& layout, Group group);

// The communicators that `rank` is a member of: first those for collectives,
// one for each group of several ranks, then those for transfers.
std::vector<NcclMembership> NcclMembershipsOf(const Layout& layout, Rank rank);

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
absl::Status MeetMembers(const std::vector<NcclMembership>& memberships,
                         Rank rank, RendezvousStore& store,
                         const NcclPatience& patience);

// The communicator's id, any bytes: the first member makes it, the others get
// it from the store.
absl::StatusOr<std::string> ShareId(
    const NcclMembership& membership,
    absl::FunctionRef<absl::StatusOr<std::string>()> make_id,
    RendezvousStore& store, const NcclPatience& patience);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_NCCL_NCCL_RENDEZVOUS_H_
