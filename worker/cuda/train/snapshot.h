// A snapshot of the training state of a rank on a GPU: the copy engine fills
// pinned host memory while the next step's forward and backward passes run.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_SNAPSHOT_H_
#define MILLRACE_WORKER_CUDA_TRAIN_SNAPSHOT_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/training_state.h"
#include "worker/cuda/device/handles.h"
#include "worker/train/progress_board.h"
#include "worker/train/state_snapshot.h"

namespace millrace {

// May outlive the trainer, and be destroyed on any thread.
class CudaSnapshot : public StateSnapshot {
 public:
  // Memory for the pieces of `state` that the rank owns, page-locked so that
  // copies need no help of the host. Takes about a second for 16 GiB, unless
  // memory that KeepForNext() got will do. Where the system does not allow
  // that, copies hold up the caller. `progress`, which may be null, says
  // meanwhile that memory is made.
  static absl::StatusOr<std::shared_ptr<CudaSnapshot>> Create(
      int32_t device_idx, const std::vector<StatePiece>& state,
      ProgressBoard* progress);
  // Keeps the memory of a snapshot whose trainer ends for the next trainer of
  // this process, since a recovery would wait while it is unlocked and locked.
  // At most one is kept. What it holds may not be read any more.
  static void KeepForNext(std::shared_ptr<CudaSnapshot> snapshot);
  ~CudaSnapshot() override;

  // Enqueues the copies of `state`, of the device's memory, on `stream`. No
  // earlier one may be under way.
  absl::Status Enqueue(const std::vector<StatePiece>& state,
                       cudaStream_t stream);

  absl::StatusOr<bool> IsTaken() const override;

  // Page-locked.
  bool is_pinned() const { return is_pinned_; }

 private:
  CudaSnapshot(StateSnapshot&& memory, int32_t device_idx, CudaEvent taken);
  static absl::StatusOr<std::shared_ptr<CudaSnapshot>> Make(
      int32_t device_idx, const std::vector<StatePiece>& state);

  absl::Status LockPages();
  void UnlockPages();
  bool Fits(int32_t device_idx, const std::vector<StatePiece>& state) const;

  const int32_t device_idx_;
  CudaEvent taken_;
  bool is_pinned_ = false;
  int64_t locked_bytes_ = 0;
};

// Takes the snapshots of one trainer, one after the other in the same memory.
// Not thread-safe.
class SnapshotTaker {
 public:
  // On the current device, which is `device_idx`. `progress` is borrowed and
  // may be null; see CudaSnapshot::Create().
  static absl::StatusOr<std::unique_ptr<SnapshotTaker>> Create(
      int32_t device_idx, ProgressBoard* progress);
  // Waits for memory that is being made and for copies; the next trainer of
  // this process may have the memory then.
  ~SnapshotTaker();

  // Begins to make memory for snapshots of `state` on a thread, unless it is
  // there. An abort waits for it: where that takes longer than a worker has to
  // end a generation, its process is replaced.
  void Prepare(const std::vector<StatePiece>& state);
  // Memory for the next snapshot of `state`: that of the one before unless
  // somebody holds that one.
  absl::StatusOr<std::shared_ptr<CudaSnapshot>> Next(
      const std::vector<StatePiece>& state);
  // Enqueues the copies of a snapshot behind the newest recording of `after`;
  // null: at once.
  absl::Status Enqueue(CudaSnapshot& snapshot,
                       const std::vector<StatePiece>& state,
                       const CudaEvent* after);

  // The state may be read until this event's newest recording.
  const CudaEvent& state_is_read() const { return state_is_read_; }
  absl::Status WaitForCopies();

 private:
  SnapshotTaker(int32_t device_idx, ProgressBoard* progress, CudaStream copying,
                CudaEvent state_is_read);

  const int32_t device_idx_;
  ProgressBoard* const progress_;
  CudaStream copying_;
  CudaEvent state_is_read_;
  std::shared_ptr<CudaSnapshot> newest_;
  std::future<absl::StatusOr<std::shared_ptr<CudaSnapshot>>> preparing_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_SNAPSHOT_H_
