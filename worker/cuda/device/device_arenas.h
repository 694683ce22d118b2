// The device memory of one rank's training: what worker/train/arena.h is on a
// CPU.

#ifndef MILLRACE_WORKER_CUDA_DEVICE_DEVICE_ARENAS_H_
#define MILLRACE_WORKER_CUDA_DEVICE_DEVICE_ARENAS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cuda/device_buffer.h"
#include "planner/program/program.h"

namespace millrace {

// The driver maps an allocation that is a multiple of this in large pages, also
// into other processes (peer_memory.h), and another one in small pages: mapping
// 17 GiB of a peer took 177 ms in place of 9 ms on an H200
// (docs/results/2026-11-30-peer-pages.md).
inline constexpr int64_t kDevicePageBytes = int64_t{2} << 20;

// Both arenas, on the device current at Allocate(); the persistent one zeroed.
// Each is allocated in whole pages of kDevicePageBytes.
class DeviceArenas {
 public:
  // How long to wait for memory. Memory that other ranks of the host have
  // mapped (peer_memory.h) is free only when they have ended their part of the
  // last generation, too, a moment after this rank.
  static constexpr absl::Duration kPatience = absl::Seconds(5);

  // ResourceExhausted with both sizes and the free bytes of the device, if
  // these do not become enough within `patience`. The patience is zero where
  // too large a size is nothing unusual, as for ops that a profile asks for.
  static absl::StatusOr<DeviceArenas> Allocate(
      int64_t persistent_bytes, int64_t step_bytes,
      absl::Duration patience = kPatience);

  // Returns the address of `buffer`, which must lie inside (a bug otherwise).
  std::byte* At(const Buffer& buffer) const;
  // The first byte of an arena.
  std::byte* Base(Arena arena) const {
    // A const object's arenas stay the same, but their content may change.
    return const_cast<std::byte*>(
        (arena == Arena::kPersistent ? persistent_ : step_).data());
  }
  int64_t bytes() const { return persistent_bytes_ + step_bytes_; }

 private:
  DeviceArenas(DeviceBuffer<std::byte> persistent, int64_t persistent_bytes,
               DeviceBuffer<std::byte> step, int64_t step_bytes);

  DeviceBuffer<std::byte> persistent_;
  DeviceBuffer<std::byte> step_;
  int64_t persistent_bytes_;
  int64_t step_bytes_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_DEVICE_DEVICE_ARENAS_H_
