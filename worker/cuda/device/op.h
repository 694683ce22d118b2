// One instruction of a Program made ready for a GPU, and what it is bound to.

#ifndef MILLRACE_WORKER_CUDA_DEVICE_OP_H_
#define MILLRACE_WORKER_CUDA_DEVICE_OP_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/fwd.h"
#include "kernels/optimizer/adamw_bf16.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "planner/program/program.h"
#include "worker/cuda/device/device_arenas.h"

namespace millrace {

class CudaKernelCache;      // worker/cuda/ops/kernel_cache.h
class NcclCommunicatorSet;  // worker/cuda/nccl/nccl_communicator_set.h
class PeerCopies;           // worker/cuda/peer/peer_copies.h

// Enqueues the instruction on a stream, that of its lane. Decides and allocates
// nothing, so that a CUDA graph may capture it.
using CudaOp = std::function<absl::Status(cudaStream_t)>;

// The inputs of a step that the host writes: device memory at fixed addresses,
// filled before the step starts. T tokens a micro-batch.
struct CudaStepInputs {
  const int32_t* tokens;           // [num_microbatches, T]
  const int32_t* targets;          // [num_microbatches, T]
  const int32_t* document_starts;  // [num_microbatches, T]
  // Null where no preferences are trained.
  const int32_t* pair_starts = nullptr;  // [num_microbatches, T]
  const float* references = nullptr;     // [num_microbatches, T]
  // [num_microbatches, max_documents + 1] for packed attention: tokens at which
  // the documents of a micro-batch begin, then T for all that there are not.
  const int32_t* document_offsets;
  int64_t max_documents;
  const AdamWStep* optimizer;  // This step's; kernels/optimizer/adamw_bf16.h.
  // TokenScaleOf(), in train/trained_tokens.h; null: one.
  const double* token_scale = nullptr;
  // One after a step whose loss or gradient was not a number: steps change no
  // weights until the host makes it zero. Null: each step decides for itself.
  int32_t* updates_held = nullptr;
};

// All borrowed for the lifetime of the ops bound with it.
struct CudaOpContext {
  const Program* program;
  Layout layout;
  MeshCoordinates coordinates;
  const DeviceArenas* arenas;
  CudaKernelCache* kernels;
  const CudaStepInputs* inputs;
  const TrainingSpec* training;
  const NcclCommunicatorSet* communicators;  // Null if no op communicates.
  // Does what it carries in NCCL's place; null: nothing.
  const PeerCopies* peer_copies = nullptr;
  // Documents of a micro-batch that attention makes room for, in one launch;
  // zero: every sequence is one document. At most inputs->max_documents. Below
  // zero: there may be more, and attention reads document_starts.
  int64_t num_documents = 0;
  bool deterministic = false;  // Equal runs give equal bits, at some cost.

  // Operand `i` of the instruction, as its kernel sees it.
  template <typename T>
  T* Input(const Instruction& instruction, size_t i) const {
    return reinterpret_cast<T*>(
        arenas->At(program->buffers[instruction.inputs.at(i)]));
  }
  template <typename T>
  T* Output(const Instruction& instruction, size_t i) const {
    return reinterpret_cast<T*>(
        arenas->At(program->buffers[instruction.outputs.at(i)]));
  }
};

// Binds an op of any kind, in either precision. Errors name the instruction.
absl::StatusOr<CudaOp> BindCudaOp(const CudaOpContext& context,
                                  const Instruction& instruction);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_DEVICE_OP_H_
