// The record of one run of a Program: the events that mark its start and end,
// and the scalars that the host reads afterwards. WaitForEnd() waits for the
// end.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_RUN_RECORD_H_
#define MILLRACE_WORKER_CUDA_TRAIN_RUN_RECORD_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cuda/fwd.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/train/executor.h"
#include "worker/cuda/train/rank_communication.h"
#include "worker/train/trainer.h"

namespace millrace {

struct RunRecord {
  // On the current device; `num_scalars` is NumStepScalars().
  static absl::StatusOr<RunRecord> Create(int64_t num_scalars);

  CudaEvent start;
  CudaEvent end;
  PinnedMemory scalars;  // [num_scalars] f64.
  int64_t num_scalars = kNumStepScalars;
  int64_t step = 0;
  double learning_rate = 0;
  double token_scale = 1;  // TokenScaleOf().
  // The device went on from the step before without a pause of the host's
  // making.
  bool follows = false;
  CudaPreparedProgram* measured = nullptr;  // Null: no timeline.

  const double* values() const {
    return reinterpret_cast<const double*>(scalars.data());
  }

  // Enqueues after a run the copy of its scalars from the device to the host,
  // and its end.
  absl::Status EnqueueEnd(const double* device_scalars, cudaStream_t stream);
};

// The result of a step whose end is past, without its time and timeline.
StepResult ResultOf(const RunRecord& record);

// Waits until the run is done, the peers are gone, `aborted` is set or the
// timeout has passed (DeadlineExceeded). `communication` is null if there is
// none.
absl::Status WaitForEnd(const RunRecord& record, absl::Duration timeout,
                        const std::atomic<bool>& aborted,
                        RankCommunication* communication);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_RUN_RECORD_H_
