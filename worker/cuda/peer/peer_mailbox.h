// The memory of one rank that its peers write into beside its arenas: flags of
// peer_protocol.h, the mark of an abort, and room for what is summed.
//
// Flags and mark are words of the host: abort() must set them, and any call of
// CUDA may wait for the very streams that wait for a flag.

#ifndef MILLRACE_WORKER_CUDA_PEER_PEER_MAILBOX_H_
#define MILLRACE_WORKER_CUDA_PEER_PEER_MAILBOX_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "kernels/cuda/device_buffer.h"
#include "planner/program/program.h"
#include "worker/cuda/peer/peer_protocol.h"
#include "worker/cuda/peer/shared_words.h"

namespace millrace {

// The places of things in a mailbox. Ranks that run one Program have equal
// ones.
class PeerMailboxLayout {
 public:
  // Scratch memory by lane.
  PeerMailboxLayout(int32_t num_ranks,
                    const std::array<int64_t, kNumLanes>& scratch_bytes);

  // Among the words: the flag that `peer` sets, and behind all flags the mark.
  int64_t FlagIndex(Lane lane, Rank peer, PeerFlag flag) const;
  int64_t num_flags() const {
    return int64_t{kNumLanes} * num_ranks_ * kNumPeerFlags;
  }
  int64_t mark_index() const { return num_flags(); }
  int64_t num_words() const { return num_flags() + 1; }

  // Returns an offset in the device's scratch memory.
  int64_t ScratchOffset(Lane lane) const {
    return scratch_offsets_[static_cast<int>(lane)];
  }
  // A multiple of kDevicePageBytes, so that nothing else lies in the pages that
  // are shared.
  int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  int32_t num_ranks_;
  std::array<int64_t, kNumLanes> scratch_offsets_;
  int64_t scratch_bytes_;
};

// A rank's own mailbox, on the device current at Create(); flags and mark are
// zero.
class PeerMailbox {
 public:
  static absl::StatusOr<std::unique_ptr<PeerMailbox>> Create(
      PeerMailboxLayout layout, Rank rank);
  // Waits for the end of what Release() began.
  ~PeerMailbox();

  const PeerMailboxLayout& layout() const { return layout_; }
  std::byte* scratch() { return scratch_.data(); }
  const SharedWords& words() const { return words_; }
  // Returns 1 + the rank of a peer that aborted, or zero. Thread-safe.
  uint32_t mark() const {
    return SharedWords::Load(words_.words() + layout_.mark_index());
  }

  // Writes 1 + the rank as the mark of every mailbox of `peers`, then begins to
  // set all own flags, again and again until the destructor. Calls nothing of
  // CUDA. Thread-safe; only the first call counts.
  void Release(const std::vector<const SharedWords*>& peers);

 private:
  PeerMailbox(PeerMailboxLayout layout, Rank rank, SharedWords words,
              DeviceBuffer<std::byte> scratch);
  void SetFlagsUntilTheEnd();

  const PeerMailboxLayout layout_;
  const Rank rank_;
  SharedWords words_;
  DeviceBuffer<std::byte> scratch_;
  std::atomic<bool> ends_ = false;
  std::mutex mutex_;  // Guards releasing_.
  std::thread releasing_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_PEER_PEER_MAILBOX_H_
