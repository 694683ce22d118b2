#include "worker/cuda/peer/peer_mailbox.h"

#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/cuda/device/device_arenas.h"

namespace millrace {
namespace {

// A pass over the flags lets each stream go on by one wait; a step has
// thousands.
constexpr absl::Duration kPause = absl::Microseconds(2);

}  // namespace

PeerMailboxLayout::PeerMailboxLayout(
    int32_t num_ranks, const std::array<int64_t, kNumLanes>& scratch_bytes)
    : num_ranks_(num_ranks) {
  int64_t end = 0;
  for (int lane = 0; lane < kNumLanes; ++lane) {
    scratch_offsets_[lane] = RoundUp(end, kBufferAlignment);
    end = scratch_offsets_[lane] + scratch_bytes[lane];
  }
  scratch_bytes_ = RoundUp(end + 1, kDevicePageBytes);
}

int64_t PeerMailboxLayout::FlagIndex(Lane lane, Rank peer,
                                     PeerFlag flag) const {
  CHECK(ToInt(peer) >= 0 && ToInt(peer) < num_ranks_);
  const int64_t pair =
      int64_t{static_cast<int>(lane)} * num_ranks_ + ToInt(peer);
  return pair * kNumPeerFlags + static_cast<int>(flag);
}

absl::StatusOr<std::unique_ptr<PeerMailbox>> PeerMailbox::Create(
    PeerMailboxLayout layout, Rank rank) {
  ASSIGN_OR_RETURN(SharedWords words, SharedWords::Create(layout.num_words()));
  ASSIGN_OR_RETURN(auto scratch,
                   DeviceBuffer<std::byte>::Allocate(
                       static_cast<size_t>(layout.scratch_bytes())));
  return std::unique_ptr<PeerMailbox>(
      new PeerMailbox(layout, rank, std::move(words), std::move(scratch)));
}

PeerMailbox::PeerMailbox(PeerMailboxLayout layout, Rank rank, SharedWords words,
                         DeviceBuffer<std::byte> scratch)
    : layout_(layout),
      rank_(rank),
      words_(std::move(words)),
      scratch_(std::move(scratch)) {}

PeerMailbox::~PeerMailbox() {
  ends_ = true;
  if (releasing_.joinable()) releasing_.join();
}

void PeerMailbox::Release(const std::vector<const SharedWords*>& peers) {
  std::lock_guard lock(mutex_);
  if (releasing_.joinable()) return;
  for (const SharedWords* peer : peers) {
    SharedWords::Store(peer->words() + layout_.mark_index(),
                       1u + static_cast<uint32_t>(ToInt(rank_)));
  }
  releasing_ = std::thread([this] { SetFlagsUntilTheEnd(); });
}

void PeerMailbox::SetFlagsUntilTheEnd() {
  while (!ends_) {
    for (int64_t i = 0; i < layout_.num_flags(); ++i) {
      SharedWords::Store(words_.words() + i, 1);
    }
    absl::SleepFor(kPause);
  }
}

}  // namespace millrace
