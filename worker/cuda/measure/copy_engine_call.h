// One collective or transfer by copy engines outside of training, for profiles
// to measure.

#ifndef MILLRACE_WORKER_CUDA_MEASURE_COPY_ENGINE_CALL_H_
#define MILLRACE_WORKER_CUDA_MEASURE_COPY_ENGINE_CALL_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "kernels/cuda/fwd.h"
#include "planner/layout/layout.h"
#include "planner/program/ops.h"
#include "planner/program/program.h"
#include "worker/communicate/rendezvous_store.h"
#include "worker/cuda/device/device_arenas.h"
#include "worker/cuda/device/op.h"
#include "worker/cuda/peer/peer_copies.h"

namespace millrace {

struct CopyEngineCallOptions {
  // A layout with one axis: tensor, whose groups do a collective, or pipeline,
  // where stage 2i sends to stage 2i + 1.
  Layout layout;
  Rank rank;
  RendezvousStore* store;  // Borrowed for Create(); new for each call.
  OpKind kind;             // kAllGather, kReduceScatter or kSend.
  int64_t num_elements;    // In the full tensor; a multiple of the group.
  DType dtype;
  absl::Duration timeout;
};

class CopyEngineCall {
 public:
  // Creates a call on the current device with memory of its own. Collective
  // over the world.
  static absl::StatusOr<std::unique_ptr<CopyEngineCall>> Create(
      const CopyEngineCallOptions& options,
      const std::atomic<bool>& abort_requested);
  // Destroy it after all work on streams has ended on all ranks that take part.

  // False on a rank that takes part, but whose group cannot use copy engines.
  bool can_run() const { return program_.instructions.empty() || op_; }

  // Does nothing on a rank that takes no part. Needs can_run().
  absl::Status Enqueue(cudaStream_t stream) const {
    return op_ ? op_(stream) : absl::OkStatus();
  }
  void Abort() { copies_->Abort(); }

 private:
  CopyEngineCall() = default;

  Program program_;
  std::unique_ptr<DeviceArenas> arenas_;
  std::unique_ptr<PeerCopies> copies_;
  CudaOp op_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_MEASURE_COPY_ENGINE_CALL_H_
