#include "worker/cuda/train/replica_hash.h"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "fault/replica_check.h"
#include "kernels/cuda/hash_words.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

using Bytes = std::span<const std::byte>;

// The memory of `pieces`; neighbours in memory become one.
std::vector<Bytes> MemoryOf(const std::vector<StatePiece>& pieces) {
  std::vector<Bytes> runs;
  for (const StatePiece& piece : pieces) {
    const Bytes next = std::as_bytes(std::span<const float>(
        piece.data, static_cast<size_t>(piece.end - piece.begin)));
    if (!runs.empty() &&
        runs.back().data() + runs.back().size() == next.data()) {
      runs.back() = Bytes(runs.back().data(), runs.back().size() + next.size());
    } else {
      runs.push_back(next);
    }
  }
  return runs;
}

}  // namespace

absl::StatusOr<ReplicaHash> ReplicaHash::Create() {
  ASSIGN_OR_RETURN(DeviceBuffer<uint64_t> sum,
                   DeviceBuffer<uint64_t>::Allocate(1));
  return ReplicaHash(std::move(sum));
}

absl::Status ReplicaHash::Enqueue(const CudaState& state, cudaStream_t stream) {
  RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(sum_.data(), 0, sizeof(uint64_t), stream),
                 "begin a hash of the training state"));
  std::vector<Bytes> runs = MemoryOf(ReplicatedPieces(state.PiecesOnDevice()));
  for (const Bytes moments : state.NarrowMoments()) runs.push_back(moments);
  uint64_t place = 0;
  for (const Bytes run : runs) {
    RETURN_IF_ERROR(
        LaunchHashWords({.data = run.data(),
                         .num_bytes = static_cast<int64_t>(run.size()),
                         .first_place = place,
                         .sum = sum_.data()},
                        stream));
    place += (run.size() + 7) / 8;
  }
  return absl::OkStatus();
}

absl::StatusOr<SliceHasher> SliceHasher::Create(int32_t num_slices) {
  ASSIGN_OR_RETURN(DeviceBuffer<uint64_t> sums,
                   DeviceBuffer<uint64_t>::Allocate(num_slices));
  return SliceHasher(std::move(sums));
}

absl::Status SliceHasher::Begin(cudaStream_t stream) {
  return CudaStatus(
      cudaMemsetAsync(sums_.data(), 0, sums_.size() * sizeof(uint64_t), stream),
      "begin hashes of the gathered parameters");
}

absl::Status SliceHasher::Add(const Program& training,
                              const DeviceArenas& arenas,
                              const std::vector<GatheredPart>& parts,
                              cudaStream_t stream) {
  for (const GatheredPart& part : parts) {
    RETURN_IF_ERROR(LaunchHashWords(
        {.data = arenas.At(training.buffers[part.buffer]) + part.offset_bytes,
         .num_bytes = part.num_bytes,
         .first_place = part.first_word,
         .sum = sums_.data() + part.slice},
        stream));
  }
  return absl::OkStatus();
}

}  // namespace millrace
