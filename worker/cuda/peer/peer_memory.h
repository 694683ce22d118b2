// Device memory that processes of one host share: CUDA's IPC handles. Copies to
// and from it take copy engines and NVLink or PCIe, and no multiprocessor.

#ifndef MILLRACE_WORKER_CUDA_PEER_PEER_MEMORY_H_
#define MILLRACE_WORKER_CUDA_PEER_PEER_MEMORY_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace millrace {

// The handle of an allocation of this process, for another one's
// PeerMemory::Open(): any bytes. `base` is its first byte; it should be a
// multiple of kDevicePageBytes (device_arenas.h) long, since a shorter one may
// share a page with others and an odd one is mapped slowly.
absl::StatusOr<std::string> ExportDeviceMemory(void* base);

// Another process's allocation, mapped on the device that was current at
// Open(). Move-only. The memory itself lives until its owner has freed it and
// all have closed it, also when the owner dies.
class PeerMemory {
 public:
  // Internal, with CUDA's reason, if the devices do not reach each other or the
  // processes may not.
  static absl::StatusOr<PeerMemory> Open(const std::string& handle);

  PeerMemory() = default;  // Nothing is mapped.
  PeerMemory(PeerMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)) {}
  PeerMemory& operator=(PeerMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~PeerMemory();

  std::byte* data() const { return data_; }  // Null: nothing.

 private:
  explicit PeerMemory(std::byte* data) : data_(data) {}
  std::byte* data_ = nullptr;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_PEER_PEER_MEMORY_H_
