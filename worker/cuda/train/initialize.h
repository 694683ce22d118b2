// Initial weights on the device: those of worker/train/initialize.h.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_INITIALIZE_H_
#define MILLRACE_WORKER_CUDA_TRAIN_INITIALIZE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "fault/training_state.h"
#include "kernels/cuda/fwd.h"
#include "planner/layout/model.h"

namespace millrace {

// Fills the pieces, whose `data` lie on the device and are parameters (moments
// are refused): matrices normal(0, init_std), vectors one. Enqueues on `stream`
// and returns without waiting. Padding between pieces stays as it is.
absl::Status InitializeOnDevice(const ModelSpec& model,
                                const std::vector<StatePiece>& parameters,
                                uint64_t seed, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_INITIALIZE_H_
