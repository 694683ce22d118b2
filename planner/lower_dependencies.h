// Finds what each instruction must wait for from the bytes it reads and writes.
// Internal to planner/lower.cc.

#ifndef MILLRACE_PLANNER_LOWER_DEPENDENCIES_H_
#define MILLRACE_PLANNER_LOWER_DEPENDENCIES_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/program.h"

namespace millrace {

// Bytes are followed in cells: a step buffer with all its parts is one; the
// persistent arena is
// cut at every boundary of a view, so that views that overlap share cells.
// Buffers and instructions are given in order.
class DependencyTracker {
 public:
  // `persistent` are all buffers of the persistent arena.
  explicit DependencyTracker(std::span<const Buffer> persistent);

  // Earlier instructions that `instruction` must follow: the last writer of
  // what it reads; the last writer and the readers since of what it writes. May
  // hold one more than once.
  std::vector<InstructionId> DependenciesOf(const Instruction& instruction,
                                            std::span<const Buffer> buffers);
  // Notes that the instruction of this id did so.
  void Add(InstructionId id, const Instruction& instruction,
           std::span<const Buffer> buffers);

 private:
  struct Cell {
    InstructionId last_write = -1;
    // The last reader on each lane since then; -1: none.
    std::array<InstructionId, kNumLanes> last_reads = {-1, -1, -1, -1,
                                                       -1, -1, -1, -1};
  };
  std::span<Cell> CellsOf(BufferId id, const Buffer& buffer);

  std::vector<int64_t> boundaries_;  // Of the persistent cells, ascending.
  std::vector<Cell> persistent_cells_;
  std::vector<Cell> step_cells_;  // By BufferId.
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_DEPENDENCIES_H_
