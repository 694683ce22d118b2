#include "worker/cuda/peer_mailbox.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

constexpr int64_t kSharedPage = int64_t{2} << 20;
// How long the marks may take to be written before flags are set all the same:
// a peer's memory that cannot be reached fails every other call, too.
constexpr absl::Duration kMarkTimeout = absl::Milliseconds(200);

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

PeerMailboxLayout::PeerMailboxLayout(
    int32_t num_ranks, const std::array<int64_t, kNumLanes>& scratch_bytes)
    : num_ranks_(num_ranks),
      mark_offset_(int64_t{kNumLanes} * num_ranks * kNumPeerFlags *
                   static_cast<int64_t>(sizeof(uint32_t))) {
  int64_t end = mark_offset_ + static_cast<int64_t>(sizeof(uint32_t));
  for (int lane = 0; lane < kNumLanes; ++lane) {
    scratch_offsets_[lane] = RoundUp(end, kBufferAlignment);
    end = scratch_offsets_[lane] + scratch_bytes[lane];
  }
  bytes_ = RoundUp(end, kSharedPage);
}

int64_t PeerMailboxLayout::FlagOffset(Lane lane, Rank peer,
                                      PeerFlag flag) const {
  CHECK(ToInt(peer) >= 0 && ToInt(peer) < num_ranks_);
  const int64_t pair =
      int64_t{static_cast<int>(lane)} * num_ranks_ + ToInt(peer);
  return (pair * kNumPeerFlags + static_cast<int>(flag)) *
         static_cast<int64_t>(sizeof(uint32_t));
}

absl::StatusOr<std::unique_ptr<PeerMailbox>> PeerMailbox::Create(
    PeerMailboxLayout layout, Rank rank) {
  int device = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "get the device"));
  ASSIGN_OR_RETURN(auto memory, DeviceBuffer<std::byte>::Allocate(
                                    static_cast<size_t>(layout.bytes())));
  RETURN_IF_ERROR(CudaStatus(
      cudaMemset(memory.data(), 0, static_cast<size_t>(layout.bytes())),
      "zero a mailbox"));
  RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "zero a mailbox"));
  ASSIGN_OR_RETURN(PinnedMemory values,
                   PinnedMemory::Allocate(static_cast<size_t>(
                       layout.flag_bytes() + sizeof(uint32_t))));
  auto* words = reinterpret_cast<uint32_t*>(values.data());
  std::fill_n(words, layout.flag_bytes() / sizeof(uint32_t) + 1, 1u);
  words[0] = 1u + static_cast<uint32_t>(ToInt(rank));
  ASSIGN_OR_RETURN(CudaStream stream,
                   CudaStream::Create(CudaStream::Priority::kHigh));
  return std::unique_ptr<PeerMailbox>(
      new PeerMailbox(layout, rank, device, std::move(memory),
                      std::move(values), std::move(stream)));
}

PeerMailbox::PeerMailbox(PeerMailboxLayout layout, Rank rank, int device,
                         DeviceBuffer<std::byte> memory, PinnedMemory values,
                         CudaStream stream)
    : layout_(layout),
      rank_(rank),
      device_(device),
      memory_(std::move(memory)),
      values_(std::move(values)),
      stream_(std::move(stream)) {}

PeerMailbox::~PeerMailbox() {
  ends_ = true;
  if (releasing_.joinable()) releasing_.join();
}

void PeerMailbox::Release(const std::vector<std::byte*>& peers) {
  std::lock_guard lock(mutex_);
  if (releasing_.joinable()) return;
  cudaSetDevice(device_);
  Mark(peers);
  releasing_ = std::thread([this] {
    cudaSetDevice(device_);
    SetFlagsUntilTheEnd();
  });
}

// Errors are nobody's to act on here and below: a device that fails in this
// fails in everything, and nothing waits on it any more.
void PeerMailbox::Mark(const std::vector<std::byte*>& peers) {
  for (std::byte* peer : peers) {
    cudaMemcpyAsync(peer + layout_.mark_offset(), values_.data(),
                    sizeof(uint32_t), cudaMemcpyHostToDevice, stream_.get());
  }
  const absl::Time deadline = MonotonicNow() + kMarkTimeout;
  while (cudaStreamQuery(stream_.get()) == cudaErrorNotReady &&
         MonotonicNow() < deadline) {
    absl::SleepFor(absl::Microseconds(10));
  }
}

void PeerMailbox::SetFlagsUntilTheEnd() {
  while (!ends_) {
    const cudaError_t error =
        cudaMemcpyAsync(memory_.data(), values_.data() + sizeof(uint32_t),
                        static_cast<size_t>(layout_.flag_bytes()),
                        cudaMemcpyHostToDevice, stream_.get());
    if (error != cudaSuccess) return;
    cudaStreamSynchronize(stream_.get());
  }
}

}  // namespace millrace
