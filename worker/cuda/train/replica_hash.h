// A hash of a rank's training state, made on its device, by which data-parallel
// replicas are compared (fault/replica_check.h).

#ifndef MILLRACE_WORKER_CUDA_TRAIN_REPLICA_HASH_H_
#define MILLRACE_WORKER_CUDA_TRAIN_REPLICA_HASH_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_buffer.h"
#include "worker/cuda/train/state.h"

namespace millrace {

class ReplicaHash {
 public:
  static absl::StatusOr<ReplicaHash> Create();  // On the current device.

  // Enqueues the hash of what the rank's replicas hold alike: fp32 pieces, and
  // moments that are stored in fewer bits.
  absl::Status Enqueue(const CudaState& state, cudaStream_t stream);

  // The hash, on the device, once the stream has come so far.
  const uint64_t* on_device() const { return sum_.data(); }

 private:
  explicit ReplicaHash(DeviceBuffer<uint64_t> sum) : sum_(std::move(sum)) {}

  DeviceBuffer<uint64_t> sum_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_REPLICA_HASH_H_
