// A Program of nothing but communication, run as training runs its own: for
// tests and benchmarks of how ranks reach each other's memory.

#ifndef MILLRACE_TESTS_WORKER_CUDA_PEER_PEER_STEP_H_
#define MILLRACE_TESTS_WORKER_CUDA_PEER_PEER_STEP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "planner/program/program.h"
#include "worker/communicate/rendezvous_store.h"
#include "worker/cuda/device/device_arenas.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/nccl/nccl_communicator_set.h"
#include "worker/cuda/peer/peer_copies.h"
#include "worker/cuda/train/executor.h"

namespace millrace {

// One call of every rank. kSend stands for a send to the next stage on every
// stage that has one, with the receive there, and kReceive for one to the
// previous stage; collectives are of the tensor group.
struct PeerCall {
  OpKind kind;
  int64_t num_elements;  // In the full tensor.
  DType dtype = DType::kBfloat16;
  bool in_place = false;
};

// The Program of one rank: input and output of call c are called "in/c" and
// "out/c", in place both "in/c"; the last stage has no input of a send to the
// next one, and so on. Lanes do not wait for each other.
Program BuildPeerProgram(const Layout& layout, int32_t stage,
                         const std::vector<PeerCall>& calls);

// A rank's Program and what it runs with.
class PeerStep {
 public:
  struct Options {
    Layout layout;
    Rank rank;
    RendezvousStore* store;
    std::vector<PeerCall> calls;
    bool use_copies = true;  // False: NCCL.
    bool use_graphs = true;
    // Memory that every lane sets before each of its calls, so that calls begin
    // at different times.
    int64_t work_bytes = 0;
  };
  static absl::StatusOr<std::unique_ptr<PeerStep>> Create(Options options);
  ~PeerStep();

  absl::Status Run() { return executor_->Run(*prepared_); }
  absl::Status Synchronize() { return executor_->Synchronize(); }
  cudaStream_t stream() const { return executor_->stream(); }
  bool IsUnderWay() const;
  uint32_t mark() const { return copies_->mark(); }
  // All communication, as training does.
  void Abort();

  // Null: this rank has no such buffer.
  const Buffer* Find(const std::string& name) const;
  std::byte* At(const Buffer& buffer) const { return arenas_->At(buffer); }
  const Program& program() const { return program_; }

 private:
  PeerStep() = default;

  Options options_;
  Program program_;
  std::unique_ptr<DeviceArenas> arenas_;
  std::vector<DeviceBuffer<std::byte>> work_;  // By lane, where there is any.
  std::unique_ptr<NcclCommunicatorSet> communicators_;
  std::unique_ptr<PeerCopies> copies_;
  std::unique_ptr<CudaExecutor> executor_;
  std::unique_ptr<CudaPreparedProgram> prepared_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_CUDA_PEER_PEER_STEP_H_
