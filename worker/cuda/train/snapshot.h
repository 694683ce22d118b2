// A snapshot of the training state of a rank on a GPU: the copy engine fills
// pinned host memory while the next step's forward and backward passes run.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_SNAPSHOT_H_
#define MILLRACE_WORKER_CUDA_TRAIN_SNAPSHOT_H_

#include <cuda_runtime_api.h>

#include <cstdint>
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
  // copies need no help of the host. Takes about a second for 16 GiB. Where the
  // system does not allow that, copies hold up the caller. `progress`, which
  // may be null, says meanwhile that memory is made.
  static absl::StatusOr<std::shared_ptr<CudaSnapshot>> Create(
      int32_t device_idx, const std::vector<StatePiece>& state,
      ProgressBoard* progress);
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

  const int32_t device_idx_;
  CudaEvent taken_;
  bool is_pinned_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_SNAPSHOT_H_
