// Measures when each instruction of one launch starts and ends, on the device's
// own clock.

#ifndef MILLRACE_WORKER_CUDA_DEVICE_STEP_TIMER_H_
#define MILLRACE_WORKER_CUDA_DEVICE_STEP_TIMER_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/program/program.h"
#include "planner/simulate/timeline.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/device/run_observer.h"

namespace millrace {

// One event after every instruction, and one more where a lane may stand still
// before the instruction: at its start and where it waits for another lane.
// Otherwise it starts when the one before it on its lane has ended.
class StepTimer final : public CudaRunObserver {
 public:
  // `program` is borrowed. Creates the events. `in_graph`: the streams are
  // under capture, and every launch of their graph is measured.
  static absl::StatusOr<StepTimer> Create(const Program* program,
                                          bool in_graph);

  absl::Status Begin(cudaStream_t stream) override;
  absl::Status Before(InstructionId id, cudaStream_t stream) override;
  absl::Status After(InstructionId id, cudaStream_t stream) override;

  // Returns the timeline of the newest launch once it is done. The caller fills
  // in `rank`.
  absl::StatusOr<RankTimeline> Read() const;

 private:
  StepTimer(const Program* program, bool in_graph, CudaEvent launch);

  absl::Status Record(const CudaEvent& event, cudaStream_t stream) const;

  const Program* program_;
  bool in_graph_;
  CudaEvent launch_;
  // By instruction, into events_: what it starts and ends with.
  std::vector<size_t> start_;
  std::vector<size_t> end_;
  std::vector<bool> has_own_start_;
  std::vector<CudaEvent> events_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_DEVICE_STEP_TIMER_H_
