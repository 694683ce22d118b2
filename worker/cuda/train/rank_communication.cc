#include "worker/cuda/train/rank_communication.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<RankCommunication>> RankCommunication::Create(
    const PeerCopyOptions& options, const std::atomic<bool>& abort_requested) {
  std::unique_ptr<RankCommunication> made(new RankCommunication);
  ASSIGN_OR_RETURN(made->communicators_,
                   NcclCommunicatorSet::Create({.layout = options.layout,
                                                .rank = options.rank,
                                                .store = options.store,
                                                .timeout = options.timeout},
                                               abort_requested));
  return made;
}

absl::Status RankCommunication::ConnectCopies(
    const PeerCopyOptions& options, const std::atomic<bool>& abort_requested) {
  if (!options.layout.copy_engines.any()) return absl::OkStatus();
  ASSIGN_OR_RETURN(copies_, PeerCopies::Create(options, abort_requested));
  return absl::OkStatus();
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
