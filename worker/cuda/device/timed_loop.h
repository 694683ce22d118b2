// Work made ready to run on a stream of its own and be timed there, beside
// other work.

#ifndef MILLRACE_WORKER_CUDA_DEVICE_TIMED_LOOP_H_
#define MILLRACE_WORKER_CUDA_DEVICE_TIMED_LOOP_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

class TimedLoop {
 public:
  virtual ~TimedLoop() = default;
  // Enqueues all of it.
  virtual absl::Status Start() = 0;
  // Waits for it; the seconds it took on the device.
  virtual absl::StatusOr<double> Finish() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_DEVICE_TIMED_LOOP_H_
