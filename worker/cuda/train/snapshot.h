// A snapshot of the training state of a rank on a GPU: the copy engine fills
// pinned host memory while the next step's forward and backward passes run. The
// first bytes of the state may go through staging memory of the device, and the
// parts of the state are read in the order in which the optimizer changes them
// (planner/search/snapshot_plan.h).

#ifndef MILLRACE_WORKER_CUDA_TRAIN_SNAPSHOT_H_
#define MILLRACE_WORKER_CUDA_TRAIN_SNAPSHOT_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/training_state.h"
#include "kernels/cuda/device_buffer.h"
#include "planner/program/program.h"
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

  // Enqueues the copies of `state`, of the device's memory, on `stream`: its
  // first bytes by way of `staging`, as many as fit. parts_read[p] is recorded
  // when part p of the state may be changed; `part_of` has the part of each
  // owned piece, ascending. Earlier copies to this memory or through the same
  // staging memory must be on the same stream.
  absl::Status Enqueue(const std::vector<StatePiece>& state,
                       std::span<const int32_t> part_of,
                       std::span<std::byte> staging,
                       std::span<const CudaEvent> parts_read,
                       cudaStream_t stream);

  absl::StatusOr<bool> IsTaken() const override;

  // Page-locked.
  bool is_pinned() const { return is_pinned_; }

 private:
  CudaSnapshot(StateSnapshot&& memory, int32_t device_idx, CudaEvent taken);
  static absl::StatusOr<std::shared_ptr<CudaSnapshot>> Make(
      int32_t device_idx, const std::vector<StatePiece>& state);

  // Enqueues a copy to the bytes from `begin` of the snapshot's memory.
  absl::Status Download(int64_t begin, const std::byte* device,
                        int64_t num_bytes, cudaStream_t stream);
  absl::Status LockPages();
  void UnlockPages();
  bool Fits(int32_t device_idx, const std::vector<StatePiece>& state) const;

  const int32_t device_idx_;
  CudaEvent taken_;
  bool is_pinned_ = false;
  int64_t locked_bytes_ = 0;
};

struct SnapshotTakerOptions {
  int32_t device_idx = 0;            // The current device.
  const Program* program = nullptr;  // That of training; borrowed.
  int64_t staged_bytes = 0;          // For AllocateStaging().
  // Borrowed, may be null; see CudaSnapshot::Create().
  ProgressBoard* progress = nullptr;
};

// Takes the snapshots of one trainer, one after the other in the same memory.
// Not thread-safe.
class SnapshotTaker {
 public:
  static absl::StatusOr<std::unique_ptr<SnapshotTaker>> Create(
      const SnapshotTakerOptions& options);
  // Waits for memory that is being made and for copies; the next trainer of
  // this process may have the memory then.
  ~SnapshotTaker();

  // Allocates the device memory in which snapshots are staged, once. Returns
  // whether it did. Where the device lacks it, snapshots are taken without, and
  // standard error says so. Not at the start, which does without memory that
  // other ranks have not freed yet.
  bool AllocateStaging();
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

  // The event whose newest recording an op of the training Program waits for:
  // the part of the state that it changes may be read until then. Null for an
  // op that changes none.
  const CudaEvent* IsRead(const Instruction& instruction) const;
  absl::Status WaitForCopies();

 private:
  SnapshotTaker(const SnapshotTakerOptions& options, CudaStream copying);
  // Of each owned piece.
  std::vector<int32_t> PartsOf(const std::vector<StatePiece>& state) const;

  const int32_t device_idx_;
  const StageParameters& parameters_;
  ProgressBoard* const progress_;
  const std::vector<int32_t> part_of_bucket_;
  std::map<std::string, int32_t> part_of_tensor_;
  int64_t staged_bytes_;  // Until AllocateStaging().
  std::optional<DeviceBuffer<std::byte>> staging_;
  CudaStream copying_;
  std::vector<CudaEvent> parts_read_;
  std::shared_ptr<CudaSnapshot> newest_;
  std::future<absl::StatusOr<std::shared_ptr<CudaSnapshot>>> preparing_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_SNAPSHOT_H_
