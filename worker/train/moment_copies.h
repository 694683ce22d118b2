// The optimizer's moments in fp32, as checkpoints see them, where the layout
// stores them in fewer bits.

#ifndef MILLRACE_WORKER_TRAIN_MOMENT_COPIES_H_
#define MILLRACE_WORKER_TRAIN_MOMENT_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/optimizer/moments.h"
#include "planner/layout/numeric_format.h"
#include "planner/program/program.h"
#include "worker/train/arena.h"

namespace millrace {

// The kernels' word for the format.
MomentStorage StorageOf(MomentFormat format);

// The seed of the random bits that round the moments which the instruction
// `name` ("update/layers.3") updates. It depends on neither rank nor layout.
uint64_t RoundingSeed(uint64_t seed, const std::string& name);

// Copies in host memory of both moments of one rank. Results do not depend on
// the number of threads, of which Read() and Write() use several.
class MomentCopies {
 public:
  explicit MomentCopies(const Program& program);

  // False where the stored moments are fp32, and no copies are needed.
  bool are_needed() const { return storage_ != MomentStorage::kFloat32; }

  // Both moments, as Program::exp_avg_buffer and exp_avg_sq_buffer hold them,
  // into the copies, which are allocated if they are not there.
  // ResourceExhausted if the host has no memory for them.
  absl::Status Read(const std::byte* exp_avg, const std::byte* exp_avg_sq);
  // From the copies. Where Read() was called and nothing has changed, the same
  // bits again.
  absl::Status Write(std::byte* exp_avg, std::byte* exp_avg_sq) const;
  // Allocates the copies, full of zeros, which padding must be, if they are not
  // there.
  absl::Status Allocate();
  // Gives their memory back.
  void Release() { copies_.clear(); }

  float* exp_avg() const { return FloatsOf(Moment::kFirst); }
  float* exp_avg_sq() const { return FloatsOf(Moment::kSecond); }

 private:
  float* FloatsOf(Moment moment) const;

  const MomentStorage storage_;
  const int64_t num_elements_;       // Of each moment.
  std::vector<MemoryBlock> copies_;  // By Moment; or empty.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_MOMENT_COPIES_H_
