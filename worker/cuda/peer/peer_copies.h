// Transfers and collectives between the GPUs of one host by copy engines alone
// (peer_protocol.h): they need no multiprocessor, for which NCCL's kernels
// would wait wherever a product holds all of them. Sums of a reduce-scatter
// take a short kernel after the copies.
//
// Flags are awaited by the stream itself (cuStreamBatchMemOp), which no abort
// of NCCL's ends: Abort() sets them, without CUDA, whose calls may wait for the
// streams that wait for flags. A step that went on that way has computed
// nonsense and told its peers that it arrived; so the aborting rank first marks
// its peers' memory, and who finds a mark at the end of a step (mark()) must
// not believe that step.

#ifndef MILLRACE_WORKER_CUDA_PEER_PEER_COPIES_H_
#define MILLRACE_WORKER_CUDA_PEER_PEER_COPIES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "kernels/cuda/fwd.h"
#include "planner/layout/layout.h"
#include "planner/program/program.h"
#include "worker/communicate/rendezvous_store.h"
#include "worker/cuda/device/device_arenas.h"
#include "worker/cuda/device/op.h"

namespace millrace {

struct PeerCopyOptions {
  Layout layout;  // Names what copy engines are to do.
  Rank rank;
  RendezvousStore* store;  // Borrowed for Create().
  // Borrowed for the lifetime, as are the Programs: those that run on these
  // arenas, in the same order on every rank.
  const DeviceArenas* arenas;
  std::vector<const Program*> programs;
  absl::Duration timeout = absl::Seconds(60);
};

class PeerCopies {
 public:
  // Creates it on the current device. Collective over the world. Groups whose
  // members are on several hosts, or cannot all reach each other's memory, use
  // NCCL; a line on standard error says so, and it is no error.
  static absl::StatusOr<std::unique_ptr<PeerCopies>> Create(
      const PeerCopyOptions& options, const std::atomic<bool>& abort_requested);
  // Destroy it after all work on streams has ended. Peers may write into this
  // rank's memory until their own calls have ended.
  virtual ~PeerCopies() = default;

  // Whether copy engines do this instruction; equal on all who take part.
  virtual bool Carries(const Instruction& instruction) const = 0;
  // Binds an instruction that copy engines carry out.
  virtual absl::StatusOr<CudaOp> Bind(const CudaOpContext& context,
                                      const Instruction& instruction) const = 0;

  // Returns 1 + the rank of a peer that aborted, or zero. Ask it when a step
  // has ended.
  virtual uint32_t mark() const = 0;

  // Marks the peers, then sets this rank's flags over and over until the
  // destructor: whatever waits goes on, in microseconds a call. To be called
  // before NCCL's abort, which makes the step go on, too. Never waits;
  // thread-safe. Then synchronize the streams.
  virtual void Abort() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_PEER_PEER_COPIES_H_
