// Loads a state to the device while its next chunks are read: threads read
// into page-locked memory of their own, from which copy engines take it.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_DEVICE_LOAD_TARGET_H_
#define MILLRACE_WORKER_CUDA_TRAIN_DEVICE_LOAD_TARGET_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fault/load_target.h"

namespace millrace {

// The memory of the device that is current when it is made. What runs there
// must not use the memory that is loaded until the lanes have finished.
class DeviceLoadTarget : public LoadTarget {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceLoadTarget>> Create();
  absl::StatusOr<std::unique_ptr<Lane>> OpenLane() override;

 private:
  explicit DeviceLoadTarget(int device_idx) : device_idx_(device_idx) {}
  const int device_idx_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_DEVICE_LOAD_TARGET_H_
