#include "worker/cuda/cuda_state.h"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace millrace {

CudaState::CudaState(const Program* program, MeshCoordinates coordinates,
                     const DeviceArenas* arenas)
    : program_(*program), coordinates_(coordinates), arenas_(*arenas) {
  CHECK(program_.kind == ProgramKind::kTraining);
}

const Buffer& CudaState::BufferOf(int i) const {
  const bool master = program_.master_buffer >= 0;
  const std::array<BufferId, kNumBuffers> ids = {
      master ? program_.master_buffer : program_.parameters_buffer,
      program_.exp_avg_buffer, program_.exp_avg_sq_buffer};
  return program_.buffers[ids[i]];
}

std::vector<StatePiece> CudaState::Describe(
    std::array<float*, kNumBuffers> data) const {
  return DescribeState(program_.parameters, program_.layout, coordinates_,
                       {.parameters = data[0],
                        .exp_avg = data[1],
                        .exp_avg_sq = data[2],
                        .master = program_.master_buffer >= 0});
}

std::vector<StatePiece> CudaState::ParametersOnDevice() const {
  std::array<float*, kNumBuffers> data;
  for (int i = 0; i < kNumBuffers; ++i) {
    data[i] = reinterpret_cast<float*>(arenas_.At(BufferOf(i)));
  }
  std::vector<StatePiece> parameters;
  for (StatePiece& piece : Describe(data)) {
    if (piece.tensor.ends_with(".exp_avg")) continue;
    if (piece.tensor.ends_with(".exp_avg_sq")) continue;
    parameters.push_back(std::move(piece));
  }
  return parameters;
}

absl::StatusOr<std::vector<StatePiece>> CudaState::HostPieces() {
  std::array<float*, kNumBuffers> data;
  for (int i = 0; i < kNumBuffers; ++i) {
    if (host_.size() == static_cast<size_t>(i)) {
      ASSIGN_OR_RETURN(MemoryBlock block,
                       MemoryBlock::Allocate(BufferOf(i).bytes));
      host_.push_back(std::move(block));
    }
    data[i] = reinterpret_cast<float*>(host_[i].data());
  }
  return Describe(data);
}

absl::Status CudaState::Download() {
  RETURN_IF_ERROR(HostPieces().status());
  for (int i = 0; i < kNumBuffers; ++i) {
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(host_[i].data(), arenas_.At(BufferOf(i)),
                              static_cast<size_t>(host_[i].bytes()),
                              cudaMemcpyDeviceToHost),
                   "copy the training state to the host"));
  }
  return absl::OkStatus();
}

absl::Status CudaState::Upload() {
  CHECK(host_.size() == kNumBuffers) << "nothing was asked for to be filled";
  for (int i = 0; i < kNumBuffers; ++i) {
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(arenas_.At(BufferOf(i)), host_[i].data(),
                              static_cast<size_t>(host_[i].bytes()),
                              cudaMemcpyHostToDevice),
                   "copy the training state to the device"));
  }
  // A copy from pageable memory may return before it has arrived.
  return CudaStatus(cudaDeviceSynchronize(),
                    "copy the training state to the device");
}

}  // namespace millrace
