// Hashes made on a rank's device, by which data-parallel replicas are compared:
// of its training state, and of the parameters that it gathers
// (fault/replica_check.h).

#ifndef MILLRACE_WORKER_CUDA_TRAIN_REPLICA_HASH_H_
#define MILLRACE_WORKER_CUDA_TRAIN_REPLICA_HASH_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_buffer.h"
#include "planner/program/program.h"
#include "worker/cuda/device/device_arenas.h"
#include "worker/cuda/train/state.h"
#include "worker/train/gathered_parameters.h"

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

// One hash for each slice of the parameters that a data group gathers.
class SliceHasher {
 public:
  // On the current device.
  static absl::StatusOr<SliceHasher> Create(int32_t num_slices);

  // Enqueues that the hashes of all slices are those of nothing.
  absl::Status Begin(cudaStream_t stream);
  // Enqueues that each part counts in its slice's hash. The order in which
  // parts are added does not matter.
  absl::Status Add(const Program& training, const DeviceArenas& arenas,
                   const std::vector<GatheredPart>& parts, cudaStream_t stream);

  // [num_slices], on the device, once the stream has come so far.
  const uint64_t* on_device() const { return sums_.data(); }

 private:
  explicit SliceHasher(DeviceBuffer<uint64_t> sums) : sums_(std::move(sums)) {}

  DeviceBuffer<uint64_t> sums_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_REPLICA_HASH_H_
