// Looks at a run of a Program, instruction by instruction, on its way to the
// streams.

#ifndef MILLRACE_WORKER_CUDA_DEVICE_RUN_OBSERVER_H_
#define MILLRACE_WORKER_CUDA_DEVICE_RUN_OBSERVER_H_

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"
#include "planner/program/program.h"

namespace millrace {

// Called on the host's thread in the Program's order. Each call may enqueue
// work on the stream that it is given, and must not wait for it.
class CudaRunObserver {
 public:
  virtual ~CudaRunObserver() = default;
  // The stream is the one that all lanes wait for before they begin.
  virtual absl::Status Begin(cudaStream_t stream) = 0;
  // The stream is the instruction's lane, which has waited for other lanes.
  virtual absl::Status Before(InstructionId id, cudaStream_t stream) = 0;
  // Nothing on another lane that waits for the instruction can begin before
  // what this enqueues is done.
  virtual absl::Status After(InstructionId id, cudaStream_t stream) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_DEVICE_RUN_OBSERVER_H_
