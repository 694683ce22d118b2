// Hashes by which ranks compare their training state and what they gathered
// from each other.

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "worker/cuda/train/cuda_trainer.h"

namespace millrace {

absl::StatusOr<bool> CudaTrainer::BeginReplicaHash() {
  RETURN_IF_ERROR(Begin());
  if (!replica_hash_.has_value()) {
    ASSIGN_OR_RETURN(replica_hash_, ReplicaHash::Create());
    ASSIGN_OR_RETURN(hash_run_, RunRecord::Create(/*num_scalars=*/1));
  }
  const cudaStream_t stream = executor_->stream();
  RETURN_IF_ERROR(replica_hash_->Enqueue(*state_, stream));
  // The record copies 64 bits, whatever they stand for.
  RETURN_IF_ERROR(hash_run_->EnqueueEnd(
      reinterpret_cast<const double*>(replica_hash_->on_device()), stream));
  return true;
}

absl::StatusOr<uint64_t> CudaTrainer::FinishReplicaHash() {
  RETURN_IF_ERROR(Begin());
  CHECK(hash_run_.has_value()) << "no hash was begun";
  if (const absl::Status status = WaitFor(*hash_run_); !status.ok()) {
    return Fail(status, "hashing the training state");
  }
  uint64_t hash;
  std::memcpy(&hash, hash_run_->scalars.data(), sizeof(hash));
  return hash;
}

absl::StatusOr<bool> CudaTrainer::HashOwnSlice() {
  RETURN_IF_ERROR(Begin());
  if (gathered_.after_step.empty()) return false;
  if (!slice_hashes_.has_value()) {
    ASSIGN_OR_RETURN(slice_hashes_, SliceHasher::Create(layout_.group_data()));
    ASSIGN_OR_RETURN(slices_run_, RunRecord::Create(layout_.group_data()));
  }
  RETURN_IF_ERROR(slice_hashes_->Begin(executor_->stream()));
  RETURN_IF_ERROR(AddSliceHashes(gathered_.before_step));
  return true;
}

absl::Status CudaTrainer::HashGathered() {
  RETURN_IF_ERROR(Begin());
  CHECK(slice_hashes_.has_value()) << "no slice was hashed";
  RETURN_IF_ERROR(AddSliceHashes(gathered_.after_step));
  // The record copies words of 64 bits, whatever they stand for.
  return slices_run_->EnqueueEnd(
      reinterpret_cast<const double*>(slice_hashes_->on_device()),
      executor_->stream());
}

absl::Status CudaTrainer::AddSliceHashes(
    const std::vector<GatheredPart>& parts) {
  return slice_hashes_->Add(programs_->training, *arenas_, parts,
                            executor_->stream());
}

absl::StatusOr<std::vector<uint64_t>> CudaTrainer::SliceHashes() {
  RETURN_IF_ERROR(Begin());
  CHECK(slices_run_.has_value()) << "no slice was hashed";
  if (const absl::Status status = WaitFor(*slices_run_); !status.ok()) {
    return Fail(status, "hashing the gathered parameters");
  }
  std::vector<uint64_t> hashes(static_cast<size_t>(layout_.group_data()));
  std::memcpy(hashes.data(), slices_run_->scalars.data(),
              hashes.size() * sizeof(uint64_t));
  return hashes;
}

}  // namespace millrace
