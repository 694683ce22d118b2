// A copy of the training state after one step, from which a checkpoint is
// written while training goes on.

#ifndef MILLRACE_WORKER_TRAIN_STATE_SNAPSHOT_H_
#define MILLRACE_WORKER_TRAIN_STATE_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/training_state.h"
#include "worker/train/arena.h"

namespace millrace {

class StateSnapshot {
 public:
  // Snapshots leave the host's other processes at least this share of its
  // memory.
  static constexpr double kShareLeftFree = 0.05;

  // Memory for the pieces of `state` that this rank owns, with undefined
  // contents. Every page of it is there when this returns. ResourceExhausted if
  // the host would have less than `share_left_free` of its memory left.
  static absl::StatusOr<std::shared_ptr<StateSnapshot>> Create(
      const std::vector<StatePiece>& state,
      double share_left_free = kShareLeftFree);
  // Makes *newest a snapshot of `state`, of host memory. It reuses the memory
  // of the one that was there unless somebody else holds that one.
  static absl::Status Take(const std::vector<StatePiece>& state,
                           std::shared_ptr<StateSnapshot>* newest);
  // The owned pieces of `state` where they are. The state must outlive the
  // snapshot and everything that reads it, and nothing may change it meanwhile.
  static std::shared_ptr<StateSnapshot> InPlace(
      const std::vector<StatePiece>& state);
  virtual ~StateSnapshot() = default;
  StateSnapshot(const StateSnapshot&) = delete;
  StateSnapshot& operator=(const StateSnapshot&) = delete;

  // The owned pieces, in the snapshot's memory. They hold the state from when
  // IsTaken() on, until the next snapshot is taken in the same memory, which
  // whoever holds this one prevents.
  const std::vector<StatePiece>& pieces() const { return pieces_; }

  bool is_in_place() const { return !memory_.has_value(); }

  // False while the copy is under way. Thread-safe.
  virtual absl::StatusOr<bool> IsTaken() const { return true; }

  // Copies the owned pieces of `state`, of host memory, which is described as
  // Create()'s.
  absl::Status CopyFrom(const std::vector<StatePiece>& state);

 protected:
  StateSnapshot() = default;
  // A snapshot of a class of its own takes over another's memory.
  StateSnapshot(StateSnapshot&& other) = default;
  const MemoryBlock& memory() const { return *memory_; }

 private:
  std::optional<MemoryBlock> memory_;
  std::vector<StatePiece> pieces_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_STATE_SNAPSHOT_H_
