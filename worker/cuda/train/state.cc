#include "worker/cuda/train/state.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "kernels/cuda/status.h"

namespace millrace {

namespace {

constexpr int64_t kSliceBytes = 64 * kMiB;  // For one thread at a time.

// Host memory full of zeros, which padding between tensors must be.
absl::StatusOr<MemoryBlock> ZeroedBlock(int64_t num_bytes) {
  ASSIGN_OR_RETURN(MemoryBlock block,
                   MemoryBlock::AllocateUntouched(num_bytes));
  const int64_t num_slices = (num_bytes + kSliceBytes - 1) / kSliceBytes;
  RETURN_IF_ERROR(ParallelFor(num_slices, NumCopyThreads(), [&](int64_t i) {
    const int64_t begin = i * kSliceBytes;
    std::memset(block.data() + begin, 0,
                static_cast<size_t>(std::min(kSliceBytes, num_bytes - begin)));
    return absl::OkStatus();
  }));
  return block;
}

}  // namespace

CudaState::CudaState(const Program* program, MeshCoordinates coordinates,
                     const DeviceArenas* arenas)
    : program_(*program),
      coordinates_(coordinates),
      arenas_(*arenas),
      moments_(*program) {
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

std::vector<StatePiece> CudaState::PiecesOnDevice() const {
  std::array<float*, kNumBuffers> data;
  for (int i = 0; i < kNumBuffers; ++i) {
    data[i] = reinterpret_cast<float*>(arenas_.At(BufferOf(i)));
  }
  if (!has_float_moments()) data[1] = data[2] = nullptr;
  return Describe(data);
}

std::vector<std::span<const std::byte>> CudaState::NarrowMoments() const {
  std::vector<std::span<const std::byte>> moments;
  for (int i = 1; i < kNumBuffers && !has_float_moments(); ++i) {
    const Buffer& buffer = BufferOf(i);
    moments.emplace_back(arenas_.At(buffer), static_cast<size_t>(buffer.bytes));
  }
  return moments;
}

std::vector<StatePiece> CudaState::ParametersOnDevice() const {
  std::vector<StatePiece> parameters;
  for (StatePiece& piece : PiecesOnDevice()) {
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
      ASSIGN_OR_RETURN(MemoryBlock block, ZeroedBlock(BufferOf(i).bytes));
      host_.push_back(std::move(block));
    }
    data[i] = reinterpret_cast<float*>(host_[i].data());
  }
  if (!has_float_moments()) {
    RETURN_IF_ERROR(moments_.Allocate());
    data[1] = moments_.exp_avg();
    data[2] = moments_.exp_avg_sq();
  }
  return Describe(data);
}

absl::Status CudaState::Download() {
  RETURN_IF_ERROR(HostPieces().status());
  RETURN_IF_ERROR(CopyAll(cudaMemcpyDeviceToHost));
  if (has_float_moments()) return absl::OkStatus();
  return moments_.Read(host_[1].data(), host_[2].data());
}

absl::Status CudaState::Upload() {
  CHECK(host_.size() == kNumBuffers) << "nothing was asked for to be filled";
  if (!has_float_moments()) {
    RETURN_IF_ERROR(moments_.Write(host_[1].data(), host_[2].data()));
  }
  return CopyAll(cudaMemcpyHostToDevice);
}

// Page-locking this much memory would take longer than copying it once, and
// copies of other memory go through the copying thread: so several copy.
absl::Status CudaState::CopyAll(cudaMemcpyKind direction) {
  const std::string what =
      absl::StrCat("copy the training state to the ",
                   direction == cudaMemcpyDeviceToHost ? "host" : "device");
  struct Slice {
    std::byte* host;
    std::byte* device;
    int64_t bytes;
  };
  std::vector<Slice> slices;
  for (int i = 0; i < kNumBuffers; ++i) {
    for (int64_t begin = 0; begin < host_[i].bytes(); begin += kSliceBytes) {
      slices.push_back({host_[i].data() + begin,
                        arenas_.At(BufferOf(i)) + begin,
                        std::min(kSliceBytes, host_[i].bytes() - begin)});
    }
  }
  int device = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), what));
  RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), what));
  auto copy = [&](int64_t i) -> absl::Status {
    const Slice& slice = slices[i];
    const bool to_host = direction == cudaMemcpyDeviceToHost;
    RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), what));
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(to_host ? slice.host : slice.device,
                                   to_host ? slice.device : slice.host,
                                   static_cast<size_t>(slice.bytes), direction,
                                   cudaStreamPerThread),
                   what));
    return CudaStatus(cudaStreamSynchronize(cudaStreamPerThread), what);
  };
  return ParallelFor(static_cast<int64_t>(slices.size()), NumCopyThreads(),
                     copy);
}

}  // namespace millrace
