#include "worker/cuda/device/device_arenas.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

constexpr absl::Duration kArenaPoll = absl::Milliseconds(5);

struct Buffers {
  DeviceBuffer<std::byte> persistent, step;
};

// Explains a failed allocation to the user: how much is needed for what, and
// how much there is.
absl::Status DoesNotFit(int64_t persistent_bytes, int64_t step_bytes,
                        size_t free_bytes, const absl::Status& cause) {
  if (!absl::IsResourceExhausted(cause)) return cause;
  return absl::ResourceExhaustedError(
      absl::StrCat("the plan needs ", FormatBytes(persistent_bytes),
                   " for parameters, gradients and optimizer state and ",
                   FormatBytes(step_bytes), " for a step, but the device has ",
                   FormatBytes(static_cast<int64_t>(free_bytes)),
                   " free: end what else runs on it, or lower "
                   "resources.memory_per_device so that the planner knows"));
}

absl::StatusOr<Buffers> AllocateBoth(int64_t persistent_bytes,
                                     int64_t step_bytes) {
  size_t free_bytes = 0, total_bytes = 0;
  RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes),
                             "ask for the device's free memory"));
  const auto in_pages = [](int64_t bytes) {
    return static_cast<size_t>(RoundUp(bytes, kDevicePageBytes));
  };
  auto persistent =
      DeviceBuffer<std::byte>::Allocate(in_pages(persistent_bytes));
  if (!persistent.ok()) {
    return DoesNotFit(persistent_bytes, step_bytes, free_bytes,
                      persistent.status());
  }
  auto step = DeviceBuffer<std::byte>::Allocate(in_pages(step_bytes));
  if (!step.ok()) {
    return DoesNotFit(persistent_bytes, step_bytes, free_bytes, step.status());
  }
  return Buffers{*std::move(persistent), *std::move(step)};
}

}  // namespace

absl::StatusOr<DeviceArenas> DeviceArenas::Allocate(int64_t persistent_bytes,
                                                    int64_t step_bytes,
                                                    absl::Duration patience) {
  CHECK(persistent_bytes >= 0 && step_bytes >= 0);
  const absl::Time deadline = MonotonicNow() + patience;
  absl::StatusOr<Buffers> buffers = AllocateBoth(persistent_bytes, step_bytes);
  while (absl::IsResourceExhausted(buffers.status()) &&
         MonotonicNow() < deadline) {
    absl::SleepFor(kArenaPoll);
    buffers = AllocateBoth(persistent_bytes, step_bytes);
  }
  RETURN_IF_ERROR(buffers.status());
  RETURN_IF_ERROR(CudaStatus(cudaMemset(buffers->persistent.data(), 0,
                                        static_cast<size_t>(persistent_bytes)),
                             "zero the persistent arena"));
  // The default stream's work is not ordered with that of the lanes.
  RETURN_IF_ERROR(
      CudaStatus(cudaDeviceSynchronize(), "zero the persistent arena"));
  return DeviceArenas(std::move(buffers->persistent), persistent_bytes,
                      std::move(buffers->step), step_bytes);
}

DeviceArenas::DeviceArenas(DeviceBuffer<std::byte> persistent,
                           int64_t persistent_bytes,
                           DeviceBuffer<std::byte> step, int64_t step_bytes)
    : persistent_(std::move(persistent)),
      step_(std::move(step)),
      persistent_bytes_(persistent_bytes),
      step_bytes_(step_bytes) {}

std::byte* DeviceArenas::At(const Buffer& buffer) const {
  const bool persistent = buffer.arena == Arena::kPersistent;
  CHECK(buffer.offset_bytes >= 0) << buffer.name;
  CHECK(buffer.offset_bytes + buffer.bytes <=
        (persistent ? persistent_bytes_ : step_bytes_))
      << buffer.name;
  return Base(buffer.arena) + buffer.offset_bytes;
}

}  // namespace millrace
