// The limits of the current device that launchers need.

#ifndef MILLRACE_KERNELS_CUDA_DEVICE_H_
#define MILLRACE_KERNELS_CUDA_DEVICE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

struct DeviceLimits {
  int compute_capability;  // 90 for 9.0.
  int num_multiprocessors;
  int shared_bytes_per_block;  // With AllowSharedBytes().

  bool IsHopper() const { return compute_capability / 10 == 9; }
};

// Returns the current device's limits. They are read once for each device and
// process; later calls are cheap.
absl::StatusOr<DeviceLimits> CurrentDeviceLimits();

// Unavailable unless the current device has compute capability 8.0 or above,
// which every kernel here needs at least; `what` begins the sentence "... needs
// a GPU of ...".
absl::Status CheckPortableDevice(absl::string_view what);

// Lets `kernel` use more than the 48 KiB of shared memory every kernel may.
absl::Status AllowSharedBytes(const void* kernel, int shared_bytes);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CUDA_DEVICE_H_
