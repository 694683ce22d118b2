// One rank's end of one NCCL communicator, over the NCCL library.
//
// NCCL frees a communicator at the end of an abort, so whoever else asks it
// something at that moment reads freed memory. Hence every call goes through
// one lock and stops once an abort was asked for. The communicator is
// non-blocking: calls return at once and the lock is never held for long.

#ifndef MILLRACE_WORKER_CUDA_NCCL_NCCL_ENDPOINT_H_
#define MILLRACE_WORKER_CUDA_NCCL_NCCL_ENDPOINT_H_

#include <nccl.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/cuda/nccl/nccl_communicator_set.h"
#include "worker/cuda/nccl/nccl_rendezvous.h"

namespace millrace {

// `action` completes "failed to ...". A peer or link that failed is
// Unavailable, everything else Internal.
absl::Status NcclStatus(ncclResult_t result, const std::string& action);

// An id for ShareId(), as bytes.
absl::StatusOr<std::string> MakeNcclId();

// Has NCCL load its kernels and look at the machine, which the first
// communicator of a process waits for: makes one of a single rank, and ends it.
absl::Status WarmUpNccl(int32_t device_idx);

class NcclEndpoint : public NcclCommunicator {
 public:
  struct Options {
    Membership membership;
    std::string id;  // As ShareId() gave it.
    int max_blocks;  // Zero: NCCL's choice.
    // Limit for a call that must first connect to its peers.
    absl::Duration call_timeout;
  };
  // Begins to join, on the current device; Ready() says when that is done.
  static absl::StatusOr<std::unique_ptr<NcclEndpoint>> Start(Options options);

  // Aborts unless the endpoint has ended, and waits for the end. It comes when
  // the peers have ended theirs or died, since NCCL keeps its service thread
  // until then. If it takes longer than a minute after an abort, a CUDA graph
  // still holds calls of this communicator, which is a bug.
  ~NcclEndpoint() override;

  const Membership& membership() const { return options_.membership; }
  // True once what was last asked for (to join, or a call that connects) is
  // done.
  absl::StatusOr<bool> Ready();
  // The error this communicator met, if any. Never blocks.
  absl::Status Health();

  // Both return at once. The work goes on in a thread, and the destructor waits
  // for its end. Call Close() on every member at the end of all work. It lets
  // peers read what they still need, and aborts if calls are still running.
  void Abort();
  void Close();

  int32_t size() const override {
    return static_cast<int32_t>(options_.membership.members.size());
  }
  int32_t index() const override { return options_.membership.index; }
  absl::Status AllGather(const void* shard, void* full, int64_t num_elements,
                         DType dtype, cudaStream_t stream) override;
  absl::Status ReduceScatter(const void* full, void* shard,
                             int64_t num_elements, DType dtype,
                             cudaStream_t stream) override;
  absl::Status AllReduce(void* data, int64_t num_elements, DType dtype,
                         cudaStream_t stream) override;
  absl::Status Send(const void* data, int64_t num_bytes, int32_t to_index,
                    cudaStream_t stream) override;
  absl::Status Receive(void* data, int64_t num_bytes, int32_t from_index,
                       cudaStream_t stream) override;

  // The same without waiting for peers to connect; Ready() says when the call
  // is on its stream. For starting several communicators' first calls at once.
  using Issue = absl::FunctionRef<ncclResult_t(ncclComm_t)>;
  absl::Status Begin(const char* what, Issue issue);

 private:
  NcclEndpoint(Options options, int device);

  absl::Status Call(const char* what, Issue issue);
  std::string Describe(const char* what) const;
  // `body` ends the communicator, in a thread of its own.
  void EndWith(void (NcclEndpoint::*body)(), bool closing);
  void RunAbort();
  void RunClose();

  const Options options_;
  const int device_;

  std::mutex mutex_;  // Guards what follows, and every use of comm_.
  std::condition_variable ended_changed_;
  ncclComm_t comm_ = nullptr;
  bool ending_ = false;  // From then on comm_ is the ending thread's alone.
  bool closing_ = false;
  bool ended_ = false;
  absl::Status broken_;
  const char* last_call_ = "join";
  std::thread ending_thread_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_NCCL_NCCL_ENDPOINT_H_
