#include "worker/cuda/train/snapshot.h"

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "kernels/cuda/status.h"
#include "planner/search/snapshot_plan.h"

namespace millrace {
namespace {

// Smaller memory shares pages with other memory, which another snapshot may
// have locked.
constexpr int64_t kLeastPinnedBytes = 2 * kMiB;

// Memory is locked in pieces: other threads' calls of CUDA wait for one piece,
// and come in between. A copy must not cross a border of them.
constexpr int64_t kLockedAtOnce = 256 * kMiB;
constexpr absl::Duration kPause = absl::Microseconds(200);

// Copies within the device are fastest where both ends are aligned alike.
constexpr int64_t kStagingAlignment = 512;

// The first so many of `num_bytes` go through staging memory of `room` bytes.
int64_t StagedBytes(int64_t num_bytes, size_t room) {
  const int64_t usable =
      static_cast<int64_t>(room) / kStagingAlignment * kStagingAlignment;
  return std::min(num_bytes, usable);
}

// Bytes of the snapshot's memory from `begin`, and where they are copied from.
struct Run {
  int32_t part;
  int64_t begin;
  const std::byte* device;
  int64_t num_bytes;
};

// The parameter of a tensor of the state.
absl::string_view ParameterOf(absl::string_view tensor) {
  if (absl::ConsumeSuffix(&tensor, ".exp_avg_sq")) return tensor;
  absl::ConsumeSuffix(&tensor, ".exp_avg");
  return tensor;
}

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
                                   std::span<const int32_t> part_of,
                                   std::span<std::byte> staging,
                                   std::span<const CudaEvent> parts_read,
                                   cudaStream_t stream) {
  const std::vector<StatePiece> owned = OwnedPieces(state);
  CHECK(owned.size() == pieces().size());
  CHECK(owned.size() == part_of.size());
  const int64_t num_staged = StagedBytes(memory().bytes(), staging.size());
  // The staged part first: it takes milliseconds, and the optimizer comes to it
  // first.
  std::vector<Run> direct;
  for (size_t i = 0; i < owned.size(); ++i) {
    const StatePiece& to = pieces()[i];
    CHECK(owned[i].end - owned[i].begin == to.end - to.begin) << to.tensor;
    const auto* device = reinterpret_cast<const std::byte*>(owned[i].data);
    const int64_t begin =
        reinterpret_cast<std::byte*>(to.data) - memory().data();
    const int64_t end =
        begin + (to.end - to.begin) * static_cast<int64_t>(sizeof(float));
    const int64_t border = std::clamp(num_staged, begin, end);
    direct.push_back(
        {part_of[i], border, device + (border - begin), end - border});
    if (border == begin) continue;
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(staging.data() + begin, device,
                                   static_cast<size_t>(border - begin),
                                   cudaMemcpyDeviceToDevice, stream),
                   "stage the training state"));
  }
  size_t num_read = 0;  // Parts.
  for (const Run& run : direct) {
    for (; num_read < static_cast<size_t>(run.part); ++num_read) {
      RETURN_IF_ERROR(parts_read[num_read].Record(stream));
    }
    RETURN_IF_ERROR(Download(run.begin, run.device, run.num_bytes, stream));
  }
  for (; num_read < parts_read.size(); ++num_read) {
    RETURN_IF_ERROR(parts_read[num_read].Record(stream));
  }
  RETURN_IF_ERROR(Download(0, staging.data(), num_staged, stream));
  return taken_.Record(stream);
}

absl::Status CudaSnapshot::Download(int64_t begin, const std::byte* device,
                                    int64_t num_bytes, cudaStream_t stream) {
  const int64_t end = begin + num_bytes;
  while (begin < end) {
    const int64_t count =
        std::min(end - begin, kLockedAtOnce - begin % kLockedAtOnce);
    RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(memory().data() + begin, device,
                                               static_cast<size_t>(count),
                                               cudaMemcpyDeviceToHost, stream),
                               "copy the training state to the host"));
    begin += count;
    device += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> CudaSnapshot::IsTaken() const {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_idx_),
                             absl::StrCat("use GPU ", device_idx_)));
  const cudaError_t state = cudaEventQuery(taken_.get());
  if (state == cudaErrorNotReady) return false;
  RETURN_IF_ERROR(CudaStatus(state, "copy the training state to the host"));
  return true;
}

SnapshotTaker::SnapshotTaker(const SnapshotTakerOptions& options,
                             CudaStream copying)
    : device_idx_(options.device_idx),
      parameters_(options.program->parameters),
      progress_(options.progress),
      part_of_bucket_(PartOfBuckets(parameters_, options.program->layout)),
      staged_bytes_(options.staged_bytes),
      copying_(std::move(copying)) {
  CHECK(staged_bytes_ >= 0) << staged_bytes_;
  for (size_t i = 0; i < part_of_bucket_.size(); ++i) {
    for (const int32_t slot : parameters_.buckets[i].slots) {
      part_of_tensor_[parameters_.slots[slot].parameter.name] =
          part_of_bucket_[i];
    }
  }
}

absl::StatusOr<std::unique_ptr<SnapshotTaker>> SnapshotTaker::Create(
    const SnapshotTakerOptions& options) {
  ASSIGN_OR_RETURN(CudaStream copying,
                   CudaStream::Create(CudaStream::Priority::kNormal));
  std::unique_ptr<SnapshotTaker> taker(
      new SnapshotTaker(options, std::move(copying)));
  for (const int32_t part : taker->part_of_bucket_) {
    while (taker->parts_read_.size() <= static_cast<size_t>(part)) {
      ASSIGN_OR_RETURN(CudaEvent is_read,
                       CudaEvent::Create(CudaEvent::Kind::kOrder));
      RETURN_IF_ERROR(is_read.Record(taker->copying_.get()));
      taker->parts_read_.push_back(std::move(is_read));
    }
  }
  return taker;
}

std::vector<int32_t> SnapshotTaker::PartsOf(
    const std::vector<StatePiece>& state) const {
  std::vector<int32_t> parts;
  for (const StatePiece& piece : OwnedPieces(state)) {
    const auto found =
        part_of_tensor_.find(std::string(ParameterOf(piece.tensor)));
    CHECK(found != part_of_tensor_.end()) << piece.tensor;
    CHECK(parts.empty() || parts.back() <= found->second) << piece.tensor;
    parts.push_back(found->second);
  }
  return parts;
}

const CudaEvent* SnapshotTaker::IsRead(const Instruction& instruction) const {
  if (instruction.kind != OpKind::kAdamW) return nullptr;
  const std::optional<size_t> bucket = BucketOfUpdate(instruction, parameters_);
  CHECK(bucket.has_value()) << instruction.name;
  return &parts_read_[part_of_bucket_[*bucket]];
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

bool SnapshotTaker::AllocateStaging() {
  const int64_t num_bytes = std::exchange(staged_bytes_, 0);
  if (num_bytes == 0) return false;
  auto staging =
      DeviceBuffer<std::byte>::Allocate(static_cast<size_t>(num_bytes));
  if (staging.ok()) {
    staging_ = *std::move(staging);
    return true;
  }
  std::cerr << "checkpoints stall training for longer than planned: the device "
               "has no "
            << FormatBytes(num_bytes)
            << " free to stage them: " << staging.status().message()
            << std::endl;
  return false;
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
  std::span<std::byte> staging;
  if (staging_.has_value()) staging = {staging_->data(), staging_->size()};
  return snapshot.Enqueue(state, PartsOf(state), staging, parts_read_,
                          copying_.get());
}

absl::Status SnapshotTaker::WaitForCopies() {
  return CudaStatus(cudaStreamSynchronize(copying_.get()),
                    "finish copying the training state");
}

}  // namespace millrace
