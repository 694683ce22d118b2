// Times collectives and transfers among the GPUs of a job, through what
// training uses: NCCL's communicators, or copy engines.

#ifndef MILLRACE_WORKER_CUDA_MEASURE_LINK_TIMER_H_
#define MILLRACE_WORKER_CUDA_MEASURE_LINK_TIMER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "kernels/cuda/device_buffer.h"
#include "planner/learn/profile_request.h"
#include "worker/communicate/rendezvous_store.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/device/timed_loop.h"
#include "worker/cuda/measure/copy_engine_call.h"
#include "worker/cuda/nccl/nccl_communicator_set.h"

namespace millrace {

struct CudaLinkTimerOptions {
  int32_t num_ranks;  // At least two.
  Rank rank;
  RendezvousStore* store;  // Borrowed.
  // How long to wait until the slowest rank comes to a meeting point.
  absl::Duration patience;
};

// All calls are collective over all ranks, in the same order everywhere. When a
// rank stays away they end with DeadlineExceeded after the patience.
class CudaLinkTimer {
 public:
  // Creates a timer on the current device.
  static absl::StatusOr<std::unique_ptr<CudaLinkTimer>> Create(
      const CudaLinkTimerOptions& options);
  ~CudaLinkTimer();

  // The sum over ranks of what each says; a meeting point too.
  absl::StatusOr<double> Sum(double mine);

  // Seconds of one call among many back to back in a graph, while all groups do
  // the same (ProfileCommunication): the mean over ranks. `budget_seconds` of
  // the device. InvalidArgument if there are no such groups, or if groups of
  // ranks that are no neighbours do not span all ranks; FailedPrecondition,
  // everywhere, if copy engines are asked for and some rank cannot use them.
  absl::StatusOr<double> Time(const ProfileCommunication& what,
                              double budget_seconds);

  // `count` calls in one graph, the same everywhere. Lives no longer than the
  // timer; on a rank that takes no part it does nothing.
  absl::StatusOr<std::unique_ptr<TimedLoop>> MakeLoop(
      const ProfileCommunication& what, int64_t count);

  // Memory of this rank's device that the first communicator took, and the mean
  // of each further one. Zero if none was made.
  int64_t first_communicator_bytes() const { return first_bytes_; }
  int64_t communicator_bytes() const {
    return num_further_ == 0 ? 0 : further_bytes_ / num_further_;
  }

 private:
  // Communicators whose groups are `group_size` ranks, `stride` apart; those of
  // a pipeline whose neighbours are that far apart for transfers.
  struct SetKey {
    bool transfers;
    int32_t group_size;
    int32_t stride;
    auto operator<=>(const SetKey&) const = default;
  };
  class Loop;

  CudaLinkTimer(const CudaLinkTimerOptions& options, CudaStream stream,
                DeviceBuffer<double> sum)
      : options_(options), stream_(std::move(stream)), sum_(std::move(sum)) {}

  static Layout LayoutOf(const SetKey& key, int32_t num_ranks);
  // The axis along which a set's groups for collectives lie.
  static Group AxisOf(const SetKey& key) {
    return key.stride > 1 ? Group::kData : Group::kTensor;
  }
  static SetKey KeyOf(const ProfileCommunication& what);
  absl::StatusOr<NcclCommunicatorSet*> SetOf(SetKey key);
  absl::Status Enqueue(const ProfileCommunication& what,
                       NcclCommunicatorSet& set, std::byte* buffer,
                       int64_t num_elements);
  // Makes a call by copy engines. Errors are those of MakeLoop().
  absl::StatusOr<std::unique_ptr<CopyEngineCall>> MakeCopyEngineCall(
      const ProfileCommunication& what, int64_t num_elements);
  // The size and ranks of a call. ShapeOf() returns InvalidArgument if there
  // can be no such call.
  struct Shape {
    std::vector<Rank> members;  // This rank's group; empty: it waits.
    int32_t num_busy;           // Ranks that take part.
    int64_t num_elements;
  };
  absl::StatusOr<Shape> ShapeOf(const ProfileCommunication& what) const;
  // Waits for the stream; past the patience aborts.
  absl::Status Wait(absl::Duration patience);

  const CudaLinkTimerOptions options_;
  CudaStream stream_;
  DeviceBuffer<double> sum_;
  std::atomic<bool> abort_requested_{false};
  std::map<SetKey, std::unique_ptr<NcclCommunicatorSet>> sets_;
  std::set<CopyEngineCall*> copy_engine_calls_;  // Those there are.
  int64_t num_copy_engine_calls_ = 0;            // Made so far.
  int64_t first_bytes_ = 0;
  int64_t further_bytes_ = 0;
  int64_t num_further_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_MEASURE_LINK_TIMER_H_
