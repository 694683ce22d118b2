// Owned CUDA objects: streams, events, pinned host memory. All move-only; made
// on the current device.

#ifndef MILLRACE_WORKER_CUDA_DEVICE_HANDLES_H_
#define MILLRACE_WORKER_CUDA_DEVICE_HANDLES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace millrace {

// Not ordered with the default stream.
class CudaStream {
 public:
  enum class Priority { kNormal, kHigh };
  static absl::StatusOr<CudaStream> Create(Priority priority) {
    int lowest = 0, highest = 0;
    RETURN_IF_ERROR(
        CudaStatus(cudaDeviceGetStreamPriorityRange(&lowest, &highest),
                   "ask for stream priorities"));
    cudaStream_t stream = nullptr;
    RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithPriority(
                       &stream, cudaStreamNonBlocking,
                       priority == Priority::kHigh ? highest : lowest),
                   "create a stream"));
    return CudaStream(stream);
  }

  CudaStream(CudaStream&& other) noexcept
      : stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStream& operator=(CudaStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~CudaStream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  cudaStream_t get() const { return stream_; }

 private:
  explicit CudaStream(cudaStream_t stream) : stream_(stream) {}
  cudaStream_t stream_;
};

class CudaEvent {
 public:
  // Only a timed one can be measured with; the others cost less to wait for.
  enum class Kind { kOrder, kTimed };
  static absl::StatusOr<CudaEvent> Create(Kind kind) {
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(CudaStatus(
        cudaEventCreateWithFlags(&event, kind == Kind::kTimed
                                             ? cudaEventDefault
                                             : cudaEventDisableTiming),
        "create an event"));
    return CudaEvent(event);
  }

  CudaEvent(CudaEvent&& other) noexcept
      : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~CudaEvent() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  cudaEvent_t get() const { return event_; }

  absl::Status Record(cudaStream_t stream) const {
    return CudaStatus(cudaEventRecord(event_, stream), "record an event");
  }
  // Puts the recording into the graph that `stream` captures: every launch of
  // the graph records the event, as Record() does outside of graphs.
  absl::Status RecordInGraph(cudaStream_t stream) const {
    return CudaStatus(
        cudaEventRecordWithFlags(event_, stream, cudaEventRecordExternal),
        "record an event in a graph");
  }
  // Whatever `stream` is given from now on comes after the newest Record().
  absl::Status MakeWait(cudaStream_t stream) const {
    return CudaStatus(cudaStreamWaitEvent(stream, event_, 0),
                      "wait for an event");
  }
  // The same, also where `stream` captures a graph: every launch of the graph
  // waits for the newest Record() before it.
  absl::Status MakeWaitAlsoInGraph(cudaStream_t stream) const {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    RETURN_IF_ERROR(CudaStatus(cudaStreamIsCapturing(stream, &capture),
                               "ask whether a stream is captured"));
    return CudaStatus(cudaStreamWaitEvent(stream, event_,
                                          capture == cudaStreamCaptureStatusNone
                                              ? cudaEventWaitDefault
                                              : cudaEventWaitExternal),
                      "wait for an event");
  }
  // Seconds from `earlier` to this one; both timed, and past.
  absl::StatusOr<double> SecondsSince(const CudaEvent& earlier) const {
    float milliseconds = 0;
    RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&milliseconds, earlier.event_, event_),
                   "read the time between two events"));
    return 1e-3 * double{milliseconds};
  }

 private:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  cudaEvent_t event_;
};

// Host memory that the device copies from and to without the host's help.
class PinnedMemory {
 public:
  static absl::StatusOr<PinnedMemory> Allocate(size_t num_bytes) {
    void* data = nullptr;
    RETURN_IF_ERROR(
        CudaStatus(cudaHostAlloc(&data, num_bytes, cudaHostAllocDefault),
                   "allocate pinned host memory"));
    return PinnedMemory(static_cast<std::byte*>(data));
  }

  PinnedMemory(PinnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~PinnedMemory() { cudaFreeHost(data_); }

  std::byte* data() const { return data_; }

 private:
  explicit PinnedMemory(std::byte* data) : data_(data) {}
  std::byte* data_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_DEVICE_HANDLES_H_
