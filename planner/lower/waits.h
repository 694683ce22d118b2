// Finds what each instruction must wait for from the bytes it reads and writes.
// Internal to planner/lower/lower.cc.

#ifndef MILLRACE_PLANNER_LOWER_WAITS_H_
#define MILLRACE_PLANNER_LOWER_WAITS_H_

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "planner/program/happens_before.h"
#include "planner/program/program.h"

namespace millrace {

// Tracks bytes in cells, so that buffers that overlap share cells. A step
// buffer is cut at the boundaries of its parts, as they are added. The
// persistent arena is cut at every boundary of a view. Buffers and instructions
// are given in order. Step buffers have no place yet, so the offset of a part
// counts from its whole.
class DependencyTracker {
 public:
  // `persistent` are all buffers of the persistent arena.
  explicit DependencyTracker(std::span<const Buffer> persistent);

  // Earlier instructions that `instruction` must follow. For what it reads,
  // they are the last writer; for what it writes, the last writer and the
  // readers since. May hold one more than once.
  Dependencies DependenciesOf(const Instruction& instruction,
                              std::span<const Buffer> buffers);
  // Records what the instruction of this id reads and writes.
  void Add(InstructionId id, const Instruction& instruction,
           std::span<const Buffer> buffers);

 private:
  struct Cell {
    InstructionId last_write = -1;
    // The last reader on each lane since then; -1: none.
    std::array<InstructionId, kNumLanes> last_reads = {-1, -1, -1, -1,
                                                       -1, -1, -1, -1};
  };
  // Cells [i] of bytes [boundaries[i], boundaries[i + 1]); the last has none.
  struct Cells {
    std::vector<int64_t> boundaries;  // Ascending.
    std::vector<Cell> cells;
    // The index of the cell that begins here; cuts a cell in two if none does.
    size_t CutAt(int64_t offset);
  };
  std::span<Cell> CellsOf(BufferId id, std::span<const Buffer> buffers);

  Cells persistent_;
  // Step buffers by BufferId: the one cell of those that are not cut.
  std::vector<Cell> uncut_;
  std::unordered_map<BufferId, Cells> cut_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_WAITS_H_
