#include "worker/train/state_snapshot.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace millrace {
namespace {

// What one thread touches or copies at a time.
constexpr int64_t kSliceBytes = 64 * kMiB;
constexpr int64_t kPageBytes = 4 * kKiB;

int64_t BytesOf(const StatePiece& piece) {
  return (piece.end - piece.begin) * static_cast<int64_t>(sizeof(float));
}

// Makes the pages of `memory` real, as long as the host has enough others.
absl::Status Touch(const MemoryBlock& memory, double share_left_free) {
  const int64_t num_slices = (memory.bytes() + kSliceBytes - 1) / kSliceBytes;
  const auto touch = [&](int64_t slice) -> absl::Status {
    const std::optional<HostMemory> host = ReadHostMemory();
    if (host.has_value() &&
        static_cast<double>(host->available) <
            share_left_free * static_cast<double>(host->total)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the host has ", FormatBytes(host->available),
          " of memory left, and a snapshot of the training state takes ",
          FormatBytes(memory.bytes())));
    }
    const int64_t end = std::min(memory.bytes(), (slice + 1) * kSliceBytes);
    for (int64_t at = slice * kSliceBytes; at < end; at += kPageBytes) {
      memory.data()[at] = std::byte{0};
    }
    return absl::OkStatus();
  };
  return ParallelFor(num_slices, NumCopyThreads(), touch);
}

}  // namespace

absl::StatusOr<std::shared_ptr<StateSnapshot>> StateSnapshot::Create(
    const std::vector<StatePiece>& state, double share_left_free) {
  std::vector<StatePiece> pieces = OwnedPieces(state);
  int64_t num_bytes = 0;
  for (const StatePiece& piece : pieces) num_bytes += BytesOf(piece);
  ASSIGN_OR_RETURN(MemoryBlock memory,
                   MemoryBlock::AllocateUntouched(num_bytes));
  RETURN_IF_ERROR(Touch(memory, share_left_free));
  std::shared_ptr<StateSnapshot> snapshot(new StateSnapshot);
  snapshot->memory_ = std::move(memory);
  std::byte* data = snapshot->memory_->data();
  for (StatePiece& piece : pieces) {
    piece.data = reinterpret_cast<float*>(data);
    data += BytesOf(piece);
  }
  snapshot->pieces_ = std::move(pieces);
  return snapshot;
}

absl::Status StateSnapshot::Take(const std::vector<StatePiece>& state,
                                 std::shared_ptr<StateSnapshot>* newest) {
  if (*newest == nullptr || newest->use_count() > 1) {
    *newest = nullptr;
    ASSIGN_OR_RETURN(*newest, Create(state));
  }
  return (*newest)->CopyFrom(state);
}

std::shared_ptr<StateSnapshot> StateSnapshot::InPlace(
    const std::vector<StatePiece>& state) {
  std::shared_ptr<StateSnapshot> snapshot(new StateSnapshot);
  snapshot->pieces_ = OwnedPieces(state);
  return snapshot;
}

absl::Status StateSnapshot::CopyFrom(const std::vector<StatePiece>& state) {
  const std::vector<StatePiece> owned = OwnedPieces(state);
  CHECK(owned.size() == pieces_.size());
  struct Slice {
    const std::byte* from;
    std::byte* to;
    int64_t num_bytes;
  };
  std::vector<Slice> slices;
  for (size_t i = 0; i < owned.size(); ++i) {
    const int64_t num_bytes = BytesOf(pieces_[i]);
    CHECK(BytesOf(owned[i]) == num_bytes) << owned[i].tensor;
    for (int64_t at = 0; at < num_bytes; at += kSliceBytes) {
      slices.push_back({reinterpret_cast<const std::byte*>(owned[i].data) + at,
                        reinterpret_cast<std::byte*>(pieces_[i].data) + at,
                        std::min(kSliceBytes, num_bytes - at)});
    }
  }
  return ParallelFor(
      static_cast<int64_t>(slices.size()), NumCopyThreads(), [&](int64_t i) {
        const Slice& slice = slices[static_cast<size_t>(i)];
        std::memcpy(slice.to, slice.from, static_cast<size_t>(slice.num_bytes));
        return absl::OkStatus();
      });
}

}  // namespace millrace
