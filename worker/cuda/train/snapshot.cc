#include "worker/cuda/train/snapshot.h"

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

// Smaller memory shares pages with other memory, which another snapshot may
// have locked.
constexpr int64_t kLeastPinnedBytes = 2 * kMiB;

// Memory is locked in pieces: other threads' calls of CUDA wait for one piece,
// and come in between. A copy must not cross a border of them.
constexpr int64_t kLockedAtOnce = 256 * kMiB;
constexpr absl::Duration kPause = absl::Microseconds(200);

struct KeptSnapshot {
  std::mutex mutex;
  std::shared_ptr<CudaSnapshot> snapshot;
};
// Never destroyed: CUDA may have ended before the process does.
KeptSnapshot& Kept() {
  static auto* const kKept = new KeptSnapshot;
  return *kKept;
}

}  // namespace

CudaSnapshot::CudaSnapshot(StateSnapshot&& memory, int32_t device_idx,
                           CudaEvent taken)
    : StateSnapshot(std::move(memory)),
      device_idx_(device_idx),
      taken_(std::move(taken)) {}

absl::StatusOr<std::shared_ptr<CudaSnapshot>> CudaSnapshot::Create(
    int32_t device_idx, const std::vector<StatePiece>& state,
    ProgressBoard* progress) {
  if (progress != nullptr) progress->locks_memory = true;
  absl::StatusOr<std::shared_ptr<CudaSnapshot>> snapshot =
      Make(device_idx, state);
  if (progress != nullptr) progress->locks_memory = false;
  return snapshot;
}

absl::StatusOr<std::shared_ptr<CudaSnapshot>> CudaSnapshot::Make(
    int32_t device_idx, const std::vector<StatePiece>& state) {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_idx),
                             absl::StrCat("use GPU ", device_idx)));
  {
    std::lock_guard<std::mutex> lock(Kept().mutex);
    std::shared_ptr<CudaSnapshot> kept = std::move(Kept().snapshot);
    if (kept != nullptr && kept.use_count() == 1 &&
        kept->Fits(device_idx, state)) {
      return kept;
    }
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<StateSnapshot> memory,
                   StateSnapshot::Create(state));
  ASSIGN_OR_RETURN(CudaEvent taken, CudaEvent::Create(CudaEvent::Kind::kOrder));
  std::shared_ptr<CudaSnapshot> snapshot(
      new CudaSnapshot(std::move(*memory), device_idx, std::move(taken)));
  const int64_t num_bytes = snapshot->memory().bytes();
  if (num_bytes < kLeastPinnedBytes) return snapshot;
  const absl::Status locked = snapshot->LockPages();
  if (!locked.ok()) {
    std::cerr << "checkpoints hold up training: " << FormatBytes(num_bytes)
              << " of host memory cannot be page-locked: " << locked.message()
              << std::endl;
  }
  return snapshot;
}

void CudaSnapshot::KeepForNext(std::shared_ptr<CudaSnapshot> snapshot) {
  if (snapshot == nullptr || !snapshot->is_pinned_) return;
  std::lock_guard<std::mutex> lock(Kept().mutex);
  Kept().snapshot = std::move(snapshot);
}

bool CudaSnapshot::Fits(int32_t device_idx,
                        const std::vector<StatePiece>& state) const {
  const std::vector<StatePiece> owned = OwnedPieces(state);
  const auto alike = [](const StatePiece& a, const StatePiece& b) {
    return a.tensor == b.tensor && a.rows == b.rows && a.cols == b.cols &&
           a.box == b.box && a.begin == b.begin && a.end == b.end;
  };
  return device_idx == device_idx_ &&
         std::equal(owned.begin(), owned.end(), pieces().begin(),
                    pieces().end(), alike);
}

absl::Status CudaSnapshot::LockPages() {
  const int64_t num_bytes = memory().bytes();
  while (locked_bytes_ < num_bytes) {
    if (locked_bytes_ > 0) absl::SleepFor(kPause);
    const int64_t count = std::min(kLockedAtOnce, num_bytes - locked_bytes_);
    const cudaError_t error =
        cudaHostRegister(memory().data() + locked_bytes_,
                         static_cast<size_t>(count), cudaHostRegisterDefault);
    if (error != cudaSuccess) {
      cudaGetLastError();  // It is not the next call's.
      UnlockPages();
      return CudaStatus(error, "lock pages");
    }
    locked_bytes_ += count;
  }
  is_pinned_ = true;
  return absl::OkStatus();
}

void CudaSnapshot::UnlockPages() {
  for (int64_t at = 0; at < locked_bytes_; at += kLockedAtOnce) {
    cudaHostUnregister(memory().data() + at);
  }
  locked_bytes_ = 0;
}

CudaSnapshot::~CudaSnapshot() {
  cudaSetDevice(device_idx_);
  // A copy may be under way where the trainer was aborted.
  cudaEventSynchronize(taken_.get());
  UnlockPages();
}

absl::Status CudaSnapshot::Enqueue(const std::vector<StatePiece>& state,
                                   cudaStream_t stream) {
  const std::vector<StatePiece> owned = OwnedPieces(state);
  CHECK(owned.size() == pieces().size());
  for (size_t i = 0; i < owned.size(); ++i) {
    const StatePiece& to = pieces()[i];
    CHECK(owned[i].end - owned[i].begin == to.end - to.begin) << to.tensor;
    auto* host = reinterpret_cast<std::byte*>(to.data);
    const auto* device = reinterpret_cast<const std::byte*>(owned[i].data);
    int64_t left = (to.end - to.begin) * static_cast<int64_t>(sizeof(float));
    while (left > 0) {
      const int64_t at = host - memory().data();
      const int64_t count = std::min(left, kLockedAtOnce - at % kLockedAtOnce);
      RETURN_IF_ERROR(
          CudaStatus(cudaMemcpyAsync(host, device, static_cast<size_t>(count),
                                     cudaMemcpyDeviceToHost, stream),
                     "copy the training state to the host"));
      host += count;
      device += count;
      left -= count;
    }
  }
  return taken_.Record(stream);
}

absl::StatusOr<bool> CudaSnapshot::IsTaken() const {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_idx_),
                             absl::StrCat("use GPU ", device_idx_)));
  const cudaError_t state = cudaEventQuery(taken_.get());
  if (state == cudaErrorNotReady) return false;
  RETURN_IF_ERROR(CudaStatus(state, "copy the training state to the host"));
  return true;
}

SnapshotTaker::SnapshotTaker(int32_t device_idx, ProgressBoard* progress,
                             CudaStream copying, CudaEvent state_is_read)
    : device_idx_(device_idx),
      progress_(progress),
      copying_(std::move(copying)),
      state_is_read_(std::move(state_is_read)) {}

absl::StatusOr<std::unique_ptr<SnapshotTaker>> SnapshotTaker::Create(
    int32_t device_idx, ProgressBoard* progress) {
  ASSIGN_OR_RETURN(CudaStream copying,
                   CudaStream::Create(CudaStream::Priority::kNormal));
  ASSIGN_OR_RETURN(CudaEvent state_is_read,
                   CudaEvent::Create(CudaEvent::Kind::kOrder));
  RETURN_IF_ERROR(state_is_read.Record(copying.get()));
  return std::unique_ptr<SnapshotTaker>(new SnapshotTaker(
      device_idx, progress, std::move(copying), std::move(state_is_read)));
}

SnapshotTaker::~SnapshotTaker() {
  if (preparing_.valid()) {
    absl::StatusOr<std::shared_ptr<CudaSnapshot>> prepared = preparing_.get();
    if (prepared.ok()) newest_ = *std::move(prepared);
  }
  // An error is that of a step, which has been reported.
  WaitForCopies().IgnoreError();
  CudaSnapshot::KeepForNext(std::move(newest_));
}

void SnapshotTaker::Prepare(const std::vector<StatePiece>& state) {
  if (preparing_.valid() || newest_ != nullptr) return;
  preparing_ = std::async(std::launch::async, [device_idx = device_idx_, state,
                                               progress = progress_] {
    return CudaSnapshot::Create(device_idx, state, progress);
  });
}

absl::StatusOr<std::shared_ptr<CudaSnapshot>> SnapshotTaker::Next(
    const std::vector<StatePiece>& state) {
  if (preparing_.valid()) {
    // An error may be of the past: below it is tried again.
    absl::StatusOr<std::shared_ptr<CudaSnapshot>> prepared = preparing_.get();
    if (prepared.ok()) newest_ = *std::move(prepared);
  }
  if (newest_ == nullptr || newest_.use_count() > 1) {
    newest_ = nullptr;
    ASSIGN_OR_RETURN(newest_,
                     CudaSnapshot::Create(device_idx_, state, progress_));
  }
  return newest_;
}

absl::Status SnapshotTaker::Enqueue(CudaSnapshot& snapshot,
                                    const std::vector<StatePiece>& state,
                                    const CudaEvent* after) {
  if (after != nullptr) RETURN_IF_ERROR(after->MakeWait(copying_.get()));
  RETURN_IF_ERROR(snapshot.Enqueue(state, copying_.get()));
  return state_is_read_.Record(copying_.get());
}

absl::Status SnapshotTaker::WaitForCopies() {
  return CudaStatus(cudaStreamSynchronize(copying_.get()),
                    "finish copying the training state");
}

}  // namespace millrace
