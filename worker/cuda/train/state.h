// The training state of one rank on its device, and its copy in host memory
// that checkpoints are written from and loaded into.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_STATE_H_
#define MILLRACE_WORKER_CUDA_TRAIN_STATE_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/training_state.h"
#include "planner/layout/layout.h"
#include "planner/program/program.h"
#include "worker/cuda/device/device_arenas.h"
#include "worker/train/arena.h"
#include "worker/train/moment_copies.h"

namespace millrace {

// Master weights where the parameters are bf16, else the parameters, and both
// moments. Pieces are fp32. Where the layout stores moments in fewer bits,
// those of the host's copy are widened, and the device has none.
class CudaState {
 public:
  // `program` is that of training; both are borrowed.
  CudaState(const Program* program, MeshCoordinates coordinates,
            const DeviceArenas* arenas);

  // Whether the moments are fp32 on the device.
  bool has_float_moments() const { return !moments_.are_needed(); }

  // All pieces with `data` on the device, and the parameters among them.
  std::vector<StatePiece> PiecesOnDevice() const;
  std::vector<StatePiece> ParametersOnDevice() const;

  // Moments that are not fp32, as they are stored on the device; else empty.
  std::vector<std::span<const std::byte>> NarrowMoments() const;

  // The pieces in the host's copy, which is allocated when first asked for and
  // kept. Its contents are those of the newest Download(), or whatever was
  // written since.
  absl::StatusOr<std::vector<StatePiece>> HostPieces();

  // Gives the host's copy back.
  void ReleaseHost() {
    host_.clear();
    moments_.Release();
  }

  // Copy all of it, and return when it is there. Nothing on the device may be
  // using the state.
  absl::Status Download();
  absl::Status Upload();

 private:
  static constexpr int kNumBuffers = 3;  // Parameters, exp_avg, exp_avg_sq.
  const Buffer& BufferOf(int i) const;
  absl::Status CopyAll(cudaMemcpyKind direction);
  std::vector<StatePiece> Describe(std::array<float*, kNumBuffers> data) const;

  const Program& program_;
  const MeshCoordinates coordinates_;
  const DeviceArenas& arenas_;
  std::vector<MemoryBlock> host_;  // By buffer, as on the device.
  MomentCopies moments_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_STATE_H_
