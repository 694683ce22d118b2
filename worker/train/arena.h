// The memory of one rank's training: a block for what outlives the step and a
// block for what does not, with every buffer where its Program says.

#ifndef MILLRACE_WORKER_TRAIN_ARENA_H_
#define MILLRACE_WORKER_TRAIN_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "planner/program/program.h"

namespace millrace {

inline constexpr int64_t kArenaAlignment = 64;  // Bytes: a cache line.

// Memory of its own, zeroed unless stated. Move-only.
class MemoryBlock {
 public:
  // ResourceExhausted if the system has not got that much. Zero bytes are
  // allowed.
  static absl::StatusOr<MemoryBlock> Allocate(int64_t num_bytes);
  // The same, but its contents are undefined and its pages come when they are
  // first written: for what many threads fill at once.
  static absl::StatusOr<MemoryBlock> AllocateUntouched(int64_t num_bytes);

  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  MemoryBlock(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}

  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_;
};

// Both arenas of a rank; Programs that share them agree on the persistent one.
struct Arenas {
  MemoryBlock persistent;
  MemoryBlock step;

  // Returns the address of `buffer`, which must lie inside (a bug otherwise).
  std::byte* At(const Buffer& buffer) const;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_ARENA_H_
