#include "worker/cuda/train/snapshot.h"

#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

// Smaller memory shares pages with other memory, which another snapshot may
// have locked.
constexpr int64_t kLeastPinnedBytes = 2 * kMiB;

}  // namespace

CudaSnapshot::CudaSnapshot(StateSnapshot&& memory, int32_t device_idx,
                           CudaEvent taken)
    : StateSnapshot(std::move(memory)),
      device_idx_(device_idx),
      taken_(std::move(taken)) {}

absl::StatusOr<std::shared_ptr<CudaSnapshot>> CudaSnapshot::Create(
    int32_t device_idx, const std::vector<StatePiece>& state,
    ProgressBoard* progress) {
  if (progress != nullptr) progress->locks_memory = true;
  absl::StatusOr<std::shared_ptr<CudaSnapshot>> snapshot =
      Make(device_idx, state);
  if (progress != nullptr) progress->locks_memory = false;
  return snapshot;
}

absl::StatusOr<std::shared_ptr<CudaSnapshot>> CudaSnapshot::Make(
    int32_t device_idx, const std::vector<StatePiece>& state) {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_idx),
                             absl::StrCat("use GPU ", device_idx)));
  ASSIGN_OR_RETURN(const std::shared_ptr<StateSnapshot> memory,
                   StateSnapshot::Create(state));
  ASSIGN_OR_RETURN(CudaEvent taken, CudaEvent::Create(CudaEvent::Kind::kOrder));
  std::shared_ptr<CudaSnapshot> snapshot(
      new CudaSnapshot(std::move(*memory), device_idx, std::move(taken)));
  const MemoryBlock& block = snapshot->memory();
  if (block.bytes() < kLeastPinnedBytes) return snapshot;
  const cudaError_t error =
      cudaHostRegister(block.data(), static_cast<size_t>(block.bytes()),
                       cudaHostRegisterDefault);
  snapshot->is_pinned_ = error == cudaSuccess;
  if (!snapshot->is_pinned_) {
    cudaGetLastError();  // It is not the next call's.
    std::cerr << "checkpoints hold up training: " << FormatBytes(block.bytes())
              << " of host memory cannot be page-locked: "
              << cudaGetErrorString(error) << std::endl;
  }
  return snapshot;
}

CudaSnapshot::~CudaSnapshot() {
  cudaSetDevice(device_idx_);
  // A copy may be under way where the trainer was aborted.
  cudaEventSynchronize(taken_.get());
  if (is_pinned_) cudaHostUnregister(memory().data());
}

absl::Status CudaSnapshot::Enqueue(const std::vector<StatePiece>& state,
                                   cudaStream_t stream) {
  const std::vector<StatePiece> owned = OwnedPieces(state);
  CHECK(owned.size() == pieces().size());
  for (size_t i = 0; i < owned.size(); ++i) {
    const StatePiece& to = pieces()[i];
    CHECK(owned[i].end - owned[i].begin == to.end - to.begin) << to.tensor;
    const auto num_bytes =
        static_cast<size_t>(to.end - to.begin) * sizeof(float);
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(to.data, owned[i].data, num_bytes,
                                   cudaMemcpyDeviceToHost, stream),
                   "copy the training state to the host"));
  }
  return taken_.Record(stream);
}

absl::StatusOr<bool> CudaSnapshot::IsTaken() const {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_idx_),
                             absl::StrCat("use GPU ", device_idx_)));
  const cudaError_t state = cudaEventQuery(taken_.get());
  if (state == cudaErrorNotReady) return false;
  RETURN_IF_ERROR(CudaStatus(state, "copy the training state to the host"));
  return true;
}

}  // namespace millrace
