// Looks at the operands of a step that runs on a GPU, to find the op that made
// the first value that is not a number (worker/train/step_findings.h). The
// device counts on its streams, between the ops, and the host reads the counts
// when the step is done.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_STEP_CHECK_H_
#define MILLRACE_WORKER_CUDA_TRAIN_STEP_CHECK_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_buffer.h"
#include "planner/program/program.h"
#include "worker/cuda/device/device_arenas.h"
#include "worker/cuda/device/run_observer.h"
#include "worker/train/step_findings.h"

namespace millrace {

// Serves any number of runs of one Program, one at a time.
class CudaStepCheck final : public CudaRunObserver {
 public:
  // Allocates 32 bytes an instruction on the current device. Both are borrowed.
  static absl::StatusOr<CudaStepCheck> Create(const Program* program,
                                              const DeviceArenas* arenas);

  absl::Status Begin(cudaStream_t stream) override;
  absl::Status Before(InstructionId id, cudaStream_t stream) override;
  absl::Status After(InstructionId id, cudaStream_t stream) override;

  // Once the run is done.
  absl::StatusOr<StepFindings> Read() const;

 private:
  // About one instruction.
  struct Counts {
    uint64_t operands;  // Values that are not finite before it runs,
    uint64_t results;   // and after.
    std::array<float, kFloat8Matrices> amaxes;  // Of HasFloat8Amax(), else 0.
  };

  CudaStepCheck(const Program* program, const DeviceArenas* arenas,
                DeviceBuffer<Counts> counts)
      : program_(program), arenas_(arenas), counts_(std::move(counts)) {}
  absl::Status Count(const Operands& buffers, bool reads_float8,
                     uint64_t* count, cudaStream_t stream) const;
  absl::Status FindAmax(const Instruction& instruction, float* amaxes,
                        cudaStream_t stream) const;

  const Program* program_;
  const DeviceArenas* arenas_;
  DeviceBuffer<Counts> counts_;  // By instruction.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_STEP_CHECK_H_
