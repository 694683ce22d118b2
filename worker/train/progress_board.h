// Where a rank writes how far it is, so that another thread of its process can
// tell the coordinator. Writing costs one relaxed store an instruction.

#ifndef MILLRACE_WORKER_TRAIN_PROGRESS_BOARD_H_
#define MILLRACE_WORKER_TRAIN_PROGRESS_BOARD_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "planner/program/program.h"

namespace millrace {

// The values may be read in any mix of old and new ones: a reader looks for
// change, and takes them at their word only once they stand still.
struct ProgressBoard {
  std::atomic<int64_t> step = 0;  // The one under way, or the last; 0: none.
  // Instructions of each lane that have ended in this step. A GPU, whose host
  // does not see them, writes these only when a step overruns.
  std::array<std::atomic<int32_t>, kNumLanes> completed{};
  // The process makes page-locked memory for a copy of the state, seconds for
  // tens of gigabytes, in which calls of CUDA may not return.
  std::atomic<bool> locks_memory = false;

  void BeginStep(int64_t new_step) {
    for (auto& lane : completed) lane.store(0, std::memory_order_relaxed);
    step.store(new_step, std::memory_order_relaxed);
  }
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_PROGRESS_BOARD_H_
