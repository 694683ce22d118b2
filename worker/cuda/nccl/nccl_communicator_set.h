// The NCCL communicators of one rank for one generation: one a lane and group,
// so that no two lanes share one and the order of calls within each is the
// Program's on every member.

#ifndef MILLRACE_WORKER_CUDA_NCCL_NCCL_COMMUNICATOR_SET_H_
#define MILLRACE_WORKER_CUDA_NCCL_NCCL_COMMUNICATOR_SET_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "kernels/cuda/fwd.h"
#include "planner/layout/layout.h"
#include "planner/program/ops.h"
#include "planner/program/program.h"
#include "worker/communicate/rendezvous_store.h"

namespace millrace {

// One rank's end of one NCCL communicator. Calls enqueue on `stream`, return at
// once and may be captured by a CUDA graph; one thread at a time. The capture
// must not be in global mode: NCCL works in threads of its own. Errors name the
// group, its members and this rank; Aborted after an abort.
class NcclCommunicator {
 public:
  virtual ~NcclCommunicator() = default;

  virtual int32_t size() const = 0;
  virtual int32_t index() const = 0;  // This rank's index in the group.

  // Like Communicator (worker/communicate/communicator.h), for kFloat32,
  // kFloat64 and kBfloat16.
  virtual absl::Status AllGather(const void* shard, void* full,
                                 int64_t num_elements, DType dtype,
                                 cudaStream_t stream) = 0;
  virtual absl::Status ReduceScatter(const void* full, void* shard,
                                     int64_t num_elements, DType dtype,
                                     cudaStream_t stream) = 0;
  virtual absl::Status AllReduce(void* data, int64_t num_elements, DType dtype,
                                 cudaStream_t stream) = 0;
  virtual absl::Status Send(const void* data, int64_t num_bytes,
                            int32_t to_index, cudaStream_t stream) = 0;
  virtual absl::Status Receive(void* data, int64_t num_bytes,
                               int32_t from_index, cudaStream_t stream) = 0;
};

// Thread blocks, and so multiprocessors, that one call takes at most; zero:
// NCCL's choice (up to 32). More move large tensors faster, fewer leave more of
// the chip to what runs beside; in whole steps NCCL's choice was fastest.
struct NcclBlockLimits {
  int tensor = 0;
  int data = 0;
  int transfers = 0;
};

struct NcclOptions {
  Layout layout;
  Rank rank;
  RendezvousStore* store;  // Borrowed for Create(): where ids are exchanged.
  // Limit for the creation, and for every later call that connects to peers.
  absl::Duration timeout = absl::Seconds(60);
  NcclBlockLimits max_blocks;
};

class NcclCommunicatorSet {
 public:
  // Creates the set on the current device. Collective over the world; it
  // returns when every communicator has moved its first bytes. It does not
  // block in NCCL, so that `abort_requested` (polled) or the time-out end it.
  // DeadlineExceeded names the group and who is missing. FailedPrecondition
  // names a version of NCCL that is too old.
  static absl::StatusOr<std::unique_ptr<NcclCommunicatorSet>> Create(
      const NcclOptions& options, const std::atomic<bool>& abort_requested);
  // Destroy it after all work on streams has ended and every CUDA graph with
  // calls in it is destroyed. Without an abort it waits until the other members
  // do the same, but not for one that has died.
  virtual ~NcclCommunicatorSet() = default;

  // Null for a group of one. Groups of the same ranks on one lane share one.
  virtual NcclCommunicator* ForCollective(Group group) const = 0;
  // The two-rank communicator of a transfer lane (kSendNext, kReceivePrevious,
  // kSendPrevious, kReceiveNext); null at the end of the pipeline. Index 0 is
  // the earlier stage.
  virtual NcclCommunicator* ForTransferLane(Lane lane) const = 0;

  // The status of the first communicator that has failed by itself: Unavailable
  // when a peer or link did, naming the group and its members. A dead peer on
  // the same host shows in no error, only in calls that never end. Never
  // blocks; thread-safe.
  virtual absl::Status Health() const = 0;

  // Makes every kernel under way give up, about 2 ms each, and every one that
  // starts later. Returns at once; the aborts go on in threads of their own and
  // end when no CUDA graph holds the communicators any more, for which the
  // destructor waits: after this call synchronize the streams, destroy the
  // graphs (both of each: executable and template), then the set. All members
  // must abort. Thread-safe.
  virtual void Abort() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_NCCL_NCCL_COMMUNICATOR_SET_H_
