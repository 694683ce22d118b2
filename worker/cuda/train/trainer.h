// A Trainer on one GPU: each lane a stream, both arenas on the device, NCCL
// between ranks. The host prepares a step while the device works on the one
// before, and reads results a step late, so that neither waits for the other.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_TRAINER_H_
#define MILLRACE_WORKER_CUDA_TRAIN_TRAINER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/communicate/rendezvous_store.h"
#include "worker/train/trainer.h"

namespace millrace {

struct CudaTrainerSettings {
  bool use_graphs = true;  // False: every step goes to the streams.
  // A step that takes longer than this and twenty of the newest ones hangs.
  absl::Duration step_timeout = absl::Seconds(60);
  // If there are several ranks, each notes on its device how far its lanes are.
  // If false, a hanging step cannot be explained; benches use it to measure the
  // cost.
  bool note_progress = true;
  bool measure_in_graphs = false;  // As CudaExecutor::Options says.
};

// Like CreateCpuTrainer(), on device `device_idx` of this host. Communicators
// are made through `store`, which is borrowed for the lifetime and may be null
// for one rank. Initial parameters differ from the CPU's by at most the last
// bit, in about one of 10^8.
//
// Errors besides the interface's: DeadlineExceeded for a step that hangs,
// naming the collective or transfer, who takes part and who is missing;
// ResourceExhausted, with both sizes, if the plan does not fit; Internal for
// any other CUDA error, after which the process should be replaced.
absl::StatusOr<std::unique_ptr<Trainer>> CreateCudaTrainer(
    const TrainerOptions& options, int32_t device_idx, RendezvousStore* store,
    const CudaTrainerSettings& settings = {});

// Makes the context on the device and begins cuBLASLt and NCCL, which the first
// trainer of a process would have to wait for. Errors are met again there.
void WarmUpCuda(int32_t device_idx);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_TRAINER_H_
