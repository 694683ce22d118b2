// A rank's means of communication on a GPU: NCCL communicators, and copy
// engines for the instructions given to them.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_RANK_COMMUNICATION_H_
#define MILLRACE_WORKER_CUDA_TRAIN_RANK_COMMUNICATION_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/fwd.h"
#include "worker/cuda/nccl/nccl_communicator_set.h"
#include "worker/cuda/peer/peer_copies.h"

namespace millrace {

class RankCommunication {
 public:
  // Creates NCCL's communicators on the current device. Collective over the
  // world, which must have more than one rank. Errors are those of
  // NcclCommunicatorSet.
  static absl::StatusOr<std::unique_ptr<RankCommunication>> Create(
      const PeerCopyOptions& options, const std::atomic<bool>& abort_requested);
  // Gives copy engines what the layout wants them to do; until then NCCL does
  // everything. Collective over the world, once, with the options of Create().
  // Errors are those of PeerCopies. It is not worth running beside Create():
  // both hold the driver's lock most of the time, and a restore that allocates
  // page-locked memory meanwhile waits for both.
  absl::Status ConnectCopies(const PeerCopyOptions& options,
                             const std::atomic<bool>& abort_requested);
  // To be destroyed as an NcclCommunicatorSet is: after all work and graphs.

  const NcclCommunicatorSet* communicators() const {
    return communicators_.get();
  }
  // Null: NCCL does everything.
  const PeerCopies* copies() const { return copies_.get(); }

  // Like NcclCommunicatorSet's. Abort() ends when the peers are marked.
  absl::Status Health() const { return communicators_->Health(); }
  void Abort();

  // When a run has ended: Unavailable if a rank gave up meanwhile, which may
  // have fed it nonsense.
  absl::Status CheckMark() const;

 private:
  RankCommunication() = default;

  std::unique_ptr<NcclCommunicatorSet> communicators_;
  // Ends first. After an abort NCCL's threads end the communicators meanwhile.
  std::unique_ptr<PeerCopies> copies_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_RANK_COMMUNICATION_H_
