#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

constexpr int kMaxDevices = 64;

absl::StatusOr<DeviceLimits> ReadDeviceLimits(int device) {
  auto read = [&](cudaDeviceAttr attribute) -> absl::StatusOr<int> {
    int value = 0;
    RETURN_IF_ERROR(
        CudaStatus(cudaDeviceGetAttribute(&value, attribute, device),
                   "read the limits of the device"));
    return value;
  };
  DeviceLimits limits;
  ASSIGN_OR_RETURN(const int major, read(cudaDevAttrComputeCapabilityMajor));
  ASSIGN_OR_RETURN(const int minor, read(cudaDevAttrComputeCapabilityMinor));
  limits.compute_capability = 10 * major + minor;
  ASSIGN_OR_RETURN(limits.num_multiprocessors,
                   read(cudaDevAttrMultiProcessorCount));
  ASSIGN_OR_RETURN(limits.shared_bytes_per_block,
                   read(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  return limits;
}

}  // namespace

absl::StatusOr<DeviceLimits> CurrentDeviceLimits() {
  struct Entry {
    std::atomic<bool> is_known = false;
    DeviceLimits limits;
    std::atomic<bool> is_taken = false;
  };
  static std::array<Entry, kMaxDevices> entries;
  int device = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "find the device"));
  if (device >= kMaxDevices) return ReadDeviceLimits(device);
  Entry& entry = entries[device];
  if (entry.is_known.load(std::memory_order_acquire)) return entry.limits;
  ASSIGN_OR_RETURN(const DeviceLimits limits, ReadDeviceLimits(device));
  if (!entry.is_taken.exchange(true)) {
    entry.limits = limits;
    entry.is_known.store(true, std::memory_order_release);
  }
  return limits;
}

absl::Status CheckPortableDevice(absl::string_view what) {
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  if (limits.compute_capability >= 80) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      what, " needs a GPU of compute capability 8.0 or above; this one has ",
      limits.compute_capability / 10, ".", limits.compute_capability % 10));
}

absl::Status AllowSharedBytes(const void* kernel, int shared_bytes) {
  return CudaStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           shared_bytes),
      "reserve shared memory");
}

}  // namespace millrace
