#include "worker/cuda/train/rank_communication.h"

#include <cuda_runtime_api.h>

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<RankCommunication>> RankCommunication::Create(
    const PeerCopyOptions& options, const std::atomic<bool>& abort_requested) {
  std::unique_ptr<RankCommunication> made(new RankCommunication);
  int device = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "get the device"));
  // Each takes a third of a second and needs nothing of the other.
  std::future<absl::Status> copies;
  if (options.layout.copy_engines.any()) {
    copies = std::async(std::launch::async, [&]() -> absl::Status {
      RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), "use the device"));
      ASSIGN_OR_RETURN(made->copies_,
                       PeerCopies::Create(options, abort_requested));
      return absl::OkStatus();
    });
  }
  auto communicators = NcclCommunicatorSet::Create({.layout = options.layout,
                                                    .rank = options.rank,
                                                    .store = options.store,
                                                    .timeout = options.timeout},
                                                   abort_requested);
  const absl::Status copied = copies.valid() ? copies.get() : absl::OkStatus();
  ASSIGN_OR_RETURN(made->communicators_, std::move(communicators));
  RETURN_IF_ERROR(copied);
  return made;
}

void RankCommunication::Abort() {
  // First: it marks what its peers are sent from now on.
  if (copies_ != nullptr) copies_->Abort();
  communicators_->Abort();
}

absl::Status RankCommunication::CheckMark() const {
  const uint32_t mark = copies_ == nullptr ? 0 : copies_->mark();
  if (mark == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "rank ", mark - 1, " gave up while this one was in a step with it"));
}

}  // namespace millrace
