#include "worker/cuda/peer/peer_memory.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace millrace {

absl::StatusOr<std::string> ExportDeviceMemory(void* base) {
  cudaIpcMemHandle_t handle;
  RETURN_IF_ERROR(CudaStatus(cudaIpcGetMemHandle(&handle, base),
                             "share device memory with other processes"));
  return std::string(handle.reserved, sizeof(handle.reserved));
}

absl::StatusOr<PeerMemory> PeerMemory::Open(const std::string& handle) {
  cudaIpcMemHandle_t raw;
  if (handle.size() != sizeof(raw.reserved)) {
    return absl::InvalidArgumentError("not a handle of device memory");
  }
  std::memcpy(raw.reserved, handle.data(), sizeof(raw.reserved));
  void* data = nullptr;
  const cudaError_t error =
      cudaIpcOpenMemHandle(&data, raw, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) cudaGetLastError();  // Not the next launch's.
  RETURN_IF_ERROR(CudaStatus(error, "map the memory of a peer's device"));
  return PeerMemory(static_cast<std::byte*>(data));
}

PeerMemory::~PeerMemory() {
  if (data_ != nullptr) cudaIpcCloseMemHandle(data_);
}

}  // namespace millrace
