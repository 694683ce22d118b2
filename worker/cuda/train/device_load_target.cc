#include "worker/cuda/train/device_load_target.h"

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "fault/manifest.h"
#include "kernels/cuda/status.h"
#include "worker/cuda/device/handles.h"

namespace millrace {
namespace {

constexpr char kCopying[] = "copy the training state to the device";

// Two buffers: the thread reads into one while the other is copied.
class DeviceLane : public LoadTarget::Lane {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceLane>> Create(int device_idx) {
    RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_idx), kCopying));
    ASSIGN_OR_RETURN(CudaStream stream,
                     CudaStream::Create(CudaStream::Priority::kNormal));
    std::unique_ptr<DeviceLane> lane(
        new DeviceLane(device_idx, std::move(stream)));
    for (std::optional<Half>& half : lane->halves_) {
      ASSIGN_OR_RETURN(
          PinnedMemory memory,
          PinnedMemory::Allocate(static_cast<size_t>(kChunkBytes)));
      ASSIGN_OR_RETURN(CudaEvent copied,
                       CudaEvent::Create(CudaEvent::Kind::kOrder));
      half.emplace(std::move(memory), std::move(copied));
    }
    return lane;
  }
  ~DeviceLane() override {
    cudaSetDevice(device_idx_);
    // Its error, if any, is another call's too.
    static_cast<void>(cudaStreamSynchronize(stream_.get()));
  }

  absl::StatusOr<float*> Buffer() override {
    // The thread may be another one than before.
    RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_idx_), kCopying));
    RETURN_IF_ERROR(halves_[current_]->copied.Record(stream_.get()));
    current_ = 1 - current_;
    RETURN_IF_ERROR(CudaStatus(
        cudaEventSynchronize(halves_[current_]->copied.get()), kCopying));
    return reinterpret_cast<float*>(halves_[current_]->memory.data());
  }

  absl::Status Copy(float* to, const float* from,
                    int64_t num_elements) override {
    return CudaStatus(
        cudaMemcpyAsync(to, from,
                        static_cast<size_t>(num_elements) * sizeof(float),
                        cudaMemcpyHostToDevice, stream_.get()),
        kCopying);
  }

  absl::Status Finish() override {
    return CudaStatus(cudaStreamSynchronize(stream_.get()), kCopying);
  }

 private:
  struct Half {
    PinnedMemory memory;
    CudaEvent copied;
  };

  DeviceLane(int device_idx, CudaStream stream)
      : device_idx_(device_idx), stream_(std::move(stream)) {}

  const int device_idx_;
  std::array<std::optional<Half>, 2> halves_;
  size_t current_ = 0;
  CudaStream stream_;  // Ends first.
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceLoadTarget>> DeviceLoadTarget::Create() {
  int device_idx = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device_idx), kCopying));
  return std::unique_ptr<DeviceLoadTarget>(new DeviceLoadTarget(device_idx));
}

absl::StatusOr<std::unique_ptr<LoadTarget::Lane>> DeviceLoadTarget::OpenLane() {
  return DeviceLane::Create(device_idx_);
}

}  // namespace millrace
