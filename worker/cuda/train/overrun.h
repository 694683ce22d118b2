// Waits for a run, and shows while it overruns how far it is.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_OVERRUN_H_
#define MILLRACE_WORKER_CUDA_TRAIN_OVERRUN_H_

#include <atomic>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/cuda/train/executor.h"
#include "worker/cuda/train/rank_communication.h"
#include "worker/cuda/train/run_record.h"
#include "worker/train/progress_board.h"

namespace millrace {

struct OverrunLimits {
  absl::Duration timeout;    // DeadlineExceeded then.
  absl::Duration step_time;  // The newest step's.
};

// As WaitForEnd(). Once the run takes half a second more than two steps, the
// progress of its lanes is shown on the board again and again, so that the
// coordinator sees who is late.
absl::Status WaitAndShow(const RunRecord& record, const OverrunLimits& limits,
                         const std::atomic<bool>& aborted,
                         RankCommunication* communication,
                         CudaExecutor* executor, ProgressBoard* board);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_OVERRUN_H_
