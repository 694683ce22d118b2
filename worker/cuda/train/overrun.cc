#include "worker/cuda/train/overrun.h"

#include <algorithm>
#include <cstddef>

#include "base/clock.h"

namespace millrace {
namespace {

constexpr absl::Duration kShowInterval = absl::Milliseconds(500);

}  // namespace

absl::Status WaitAndShow(const RunRecord& record, const OverrunLimits& limits,
                         const std::atomic<bool>& aborted,
                         RankCommunication* communication,
                         CudaExecutor* executor, ProgressBoard* board) {
  const absl::Time deadline = MonotonicNow() + limits.timeout;
  absl::Duration patience = 2 * limits.step_time + kShowInterval;
  while (true) {
    const absl::Duration left = deadline - MonotonicNow();
    const absl::Status status =
        WaitForEnd(record, std::min(left, patience), aborted, communication);
    if (!absl::IsDeadlineExceeded(status) || left <= patience) return status;
    patience = kShowInterval;
    const auto completed = executor->ReadProgress(kShowInterval);
    if (!completed.ok()) continue;
    board->step.store(record.step, std::memory_order_relaxed);
    for (size_t lane = 0; lane < completed->size(); ++lane) {
      board->completed[lane].store((*completed)[lane],
                                   std::memory_order_relaxed);
    }
  }
}

}  // namespace millrace
