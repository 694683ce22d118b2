// The memory of one rank that its peers write into beside its arenas: flags of
// peer_protocol.h, the mark of an abort, and room for what is summed.

#ifndef MILLRACE_WORKER_CUDA_PEER_MAILBOX_H_
#define MILLRACE_WORKER_CUDA_PEER_MAILBOX_H_

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
#include "planner/program.h"
#include "worker/cuda/cuda_handles.h"
#include "worker/cuda/peer_protocol.h"

namespace millrace {

// Where things lie in a mailbox; equal on ranks that run one Program.
class PeerMailboxLayout {
 public:
  // Scratch memory by lane.
  PeerMailboxLayout(int32_t num_ranks,
                    const std::array<int64_t, kNumLanes>& scratch_bytes);

  // The flag that `peer` sets.
  int64_t FlagOffset(Lane lane, Rank peer, PeerFlag flag) const;
  int64_t flag_bytes() const { return mark_offset_; }  // From the start.
  int64_t mark_offset() const { return mark_offset_; }
  int64_t ScratchOffset(Lane lane) const {
    return scratch_offsets_[static_cast<int>(lane)];
  }
  // A multiple of 2 MiB, so that nothing else lies in the pages that are
  // shared.
  int64_t bytes() const { return bytes_; }

 private:
  int32_t num_ranks_;
  int64_t mark_offset_;
  std::array<int64_t, kNumLanes> scratch_offsets_;
  int64_t bytes_;
};

// A rank's own one, on the device current at Create(); flags and mark are zero.
class PeerMailbox {
 public:
  static absl::StatusOr<std::unique_ptr<PeerMailbox>> Create(
      PeerMailboxLayout layout, Rank rank);
  // Waits for the end of what Release() began.
  ~PeerMailbox();

  const PeerMailboxLayout& layout() const { return layout_; }
  std::byte* data() { return memory_.data(); }
  const uint32_t* mark() const {
    return reinterpret_cast<const uint32_t*>(memory_.data() +
                                             layout_.mark_offset());
  }

  // Writes 1 + the rank as the mark of every mailbox of `peers`, and when that
  // is done begins to set all own flags, again and again until the destructor.
  // Takes microseconds, a fifth of a second if a peer cannot be reached.
  // Thread-safe; only the first call counts.
  void Release(const std::vector<std::byte*>& peers);

 private:
  PeerMailbox(PeerMailboxLayout layout, Rank rank, int device,
              DeviceBuffer<std::byte> memory, PinnedMemory values,
              CudaStream stream);
  void Mark(const std::vector<std::byte*>& peers);
  void SetFlagsUntilTheEnd();

  const PeerMailboxLayout layout_;
  const Rank rank_;
  const int device_;
  DeviceBuffer<std::byte> memory_;
  // What is written: the mark, then a one for each flag.
  PinnedMemory values_;
  // Of its own, so that it gets past streams that wait.
  CudaStream stream_;
  std::atomic<bool> ends_ = false;
  std::mutex mutex_;  // Guards releasing_.
  std::thread releasing_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_PEER_MAILBOX_H_
