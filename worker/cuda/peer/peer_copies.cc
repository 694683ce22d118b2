#include "worker/cuda/peer/peer_copies.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/nccl/nccl_rendezvous.h"
#include "worker/cuda/peer/peer_calls.h"
#include "worker/cuda/peer/peer_card.h"
#include "worker/cuda/peer/peer_mailbox.h"
#include "worker/cuda/peer/peer_memory.h"
#include "worker/cuda/peer/peer_route.h"
#include "worker/cuda/peer/stream_words.h"

namespace millrace {
namespace {

// The running system's name: containers of one host share it.
std::string HostName() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return absl::StrCat(name, " ", boot);
}

class IpcPeerCopies : public PeerCopies {
 public:
  explicit IpcPeerCopies(const PeerCopyOptions& options) : options_(options) {}

  absl::Status Connect(const NcclPatience& patience);

  bool Carries(const Instruction& instruction) const override {
    const std::optional<PeerRoute> route =
        PeerRouteOf(options_.layout, options_.rank, instruction);
    return route.has_value() && CanReach(route->members);
  }
  absl::StatusOr<CudaOp> Bind(const CudaOpContext& context,
                              const Instruction& instruction) const override;
  uint32_t mark() const override {
    return mailbox_ == nullptr ? 0 : mailbox_->mark();
  }
  void Abort() override {
    if (mailbox_ == nullptr) return;
    std::vector<const SharedWords*> words;
    for (const auto& [rank, peer] : peers_) {
      words.push_back(&peer.words);
    }
    mailbox_->Release(words);
  }

 private:
  bool CanReach(const std::vector<Rank>& members) const {
    return std::all_of(members.begin(), members.end(),
                       [&](Rank member) { return able_.contains(member); });
  }
  absl::Status ShowMemory(PeerCard* card) const;
  absl::Status Reach(Rank rank, PeerCard card);
  // Says in a line what is left to NCCL, if anything is.
  void SayWhatIsLeftToNccl(const std::set<Rank>& ranks,
                           const absl::Status& obstacle) const;

  const PeerCopyOptions options_;
  std::unique_ptr<PeerMailbox> mailbox_;  // Null: there is an obstacle.
  std::map<Rank, ReachedPeer> peers_;
  // Ranks of this host that reach the memory of all they have to, this one
  // included.
  std::set<Rank> able_;
};

std::string CardKey(Rank rank) {
  return absl::StrCat("peers/card/", ToInt(rank));
}
std::string OpenedKey(Rank rank) {
  return absl::StrCat("peers/opened/", ToInt(rank));
}

absl::Status IpcPeerCopies::ShowMemory(PeerCard* card) const {
  const WrittenByPeers written =
      WrittenMemory(options_.layout, options_.rank, options_.programs);
  const auto show = [](bool is_written, void* base,
                       std::string* handle) -> absl::Status {
    if (!is_written) return absl::OkStatus();
    ASSIGN_OR_RETURN(*handle, ExportDeviceMemory(base));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(show(written.persistent_arena,
                       options_.arenas->Base(Arena::kPersistent),
                       &card->persistent_arena));
  RETURN_IF_ERROR(show(written.step_arena, options_.arenas->Base(Arena::kStep),
                       &card->step_arena));
  RETURN_IF_ERROR(show(written.scratch, mailbox_->scratch(), &card->scratch));
  card->words = mailbox_->words().handle();
  return absl::OkStatus();
}

// Reaches a peer. Tries the words that streams write, on a flag that is still
// zero and that nobody else sets.
absl::Status IpcPeerCopies::Reach(Rank rank, PeerCard card) {
  ASSIGN_OR_RETURN(ReachedPeer peer, ReachPeer(std::move(card)));
  StreamWordOps trial;
  trial.AddWrite(peer.words.device_words() +
                     mailbox_->layout().FlagIndex(Lane::kCompute, options_.rank,
                                                  PeerFlag::kRoom),
                 0);
  ASSIGN_OR_RETURN(const CudaStream stream,
                   CudaStream::Create(CudaStream::Priority::kNormal));
  RETURN_IF_ERROR(trial.Enqueue(stream.get()));
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream.get()),
                             "write into a peer's memory"));
  peers_.emplace(rank, std::move(peer));
  return absl::OkStatus();
}

absl::Status IpcPeerCopies::Connect(const NcclPatience& patience) {
  const Layout& layout = options_.layout;
  const std::set<Rank> ranks =
      RanksToReach(layout, options_.rank, options_.programs);
  PeerCard own = {.host = HostName()};
  for (size_t i = 0; i < options_.programs.size(); ++i) {
    for (auto& [lane, places] : ReceivePlacesOf(*options_.programs[i])) {
      own.receives[{static_cast<int32_t>(i), lane}] = std::move(places);
    }
  }
  // Why this rank cannot do its part; others have theirs.
  absl::StatusOr<std::unique_ptr<PeerMailbox>> mailbox = PeerMailbox::Create(
      PeerMailboxLayout(
          layout.num_ranks(),
          ScratchBytesOf(layout, options_.rank, options_.programs)),
      options_.rank);
  absl::Status obstacle = mailbox.status();
  if (obstacle.ok()) {
    mailbox_ = *std::move(mailbox);
    obstacle = ShowMemory(&own);
  }
  RETURN_IF_ERROR(
      options_.store->Set(CardKey(options_.rank), PeerCardToString(own)));
  for (const Rank rank : ranks) {
    ASSIGN_OR_RETURN(
        const std::string text,
        GetPatiently(CardKey(rank),
                     absl::StrCat("rank ", ToInt(rank), "'s memory"),
                     *options_.store, patience));
    ASSIGN_OR_RETURN(PeerCard card, PeerCardFromString(text));
    if (card.host == own.host && !card.words.empty() && obstacle.ok()) {
      obstacle = Reach(rank, std::move(card));
    }
  }
  RETURN_IF_ERROR(options_.store->Set(
      OpenedKey(options_.rank),
      obstacle.ok() ? "all" : std::string(obstacle.message())));
  if (obstacle.ok()) able_.insert(options_.rank);
  for (const auto& [rank, peer] : peers_) {
    ASSIGN_OR_RETURN(const std::string opened,
                     GetPatiently(OpenedKey(rank),
                                  absl::StrCat("rank ", ToInt(rank),
                                               "'s word that it "
                                               "reaches its peers' memory"),
                                  *options_.store, patience));
    if (opened == "all") able_.insert(rank);
  }
  SayWhatIsLeftToNccl(ranks, obstacle);
  return absl::OkStatus();
}

void IpcPeerCopies::SayWhatIsLeftToNccl(const std::set<Rank>& ranks,
                                        const absl::Status& obstacle) const {
  std::vector<int32_t> others;
  for (const Rank rank : ranks) {
    if (!able_.contains(rank)) others.push_back(ToInt(rank));
  }
  if (obstacle.ok() && others.empty()) return;
  std::cerr << "rank " << ToInt(options_.rank)
            << ": NCCL instead of copy engines"
            << (obstacle.ok()
                    ? absl::StrCat(" with ranks ", absl::StrJoin(others, ", "),
                                   ", which are on another host or do not "
                                   "reach their peers' memory")
                    : absl::StrCat(": ", obstacle.message()))
            << std::endl;
}

absl::StatusOr<CudaOp> IpcPeerCopies::Bind(const CudaOpContext& context,
                                           const Instruction& in) const {
  const std::optional<PeerRoute> route =
      PeerRouteOf(options_.layout, options_.rank, in);
  CHECK(route.has_value() && CanReach(route->members));
  return BindPeerCalls({.rank = options_.rank,
                        .programs = options_.programs,
                        .mailbox = mailbox_.get(),
                        .peers = &peers_},
                       *route, context, in);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerCopies>> PeerCopies::Create(
    const PeerCopyOptions& options, const std::atomic<bool>& abort_requested) {
  const NcclPatience patience{.deadline = MonotonicNow() + options.timeout,
                              .timeout = options.timeout,
                              .abort_requested = abort_requested};
  auto copies = std::make_unique<IpcPeerCopies>(options);
  RETURN_IF_ERROR(copies->Connect(patience));
  return copies;
}

}  // namespace millrace
