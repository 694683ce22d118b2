#include "planner/lower_dependencies.h"

#include <algorithm>

namespace millrace {

DependencyTracker::DependencyTracker(std::span<const Buffer> persistent) {
  for (const Buffer& buffer : persistent) {
    boundaries_.push_back(buffer.offset_bytes);
    boundaries_.push_back(buffer.offset_bytes + buffer.bytes);
  }
  std::sort(boundaries_.begin(), boundaries_.end());
  boundaries_.erase(std::unique(boundaries_.begin(), boundaries_.end()),
                    boundaries_.end());
  persistent_cells_.resize(boundaries_.size());
}

std::vector<InstructionId> DependencyTracker::DependenciesOf(
    const Instruction& instruction, std::span<const Buffer> buffers) {
  std::vector<InstructionId> dependencies;
  auto add = [&](InstructionId id) {
    if (id >= 0) dependencies.push_back(id);
  };
  for (BufferId id : instruction.inputs) {
    for (const Cell& cell : CellsOf(id, buffers[id])) add(cell.last_write);
  }
  for (BufferId id : WrittenBuffers(instruction)) {
    for (const Cell& cell : CellsOf(id, buffers[id])) {
      add(cell.last_write);
      for (InstructionId read : cell.last_reads) add(read);
    }
  }
  return dependencies;
}

void DependencyTracker::Add(InstructionId id, const Instruction& instruction,
                            std::span<const Buffer> buffers) {
  for (BufferId input : instruction.inputs) {
    for (Cell& cell : CellsOf(input, buffers[input])) {
      cell.last_reads[static_cast<int>(instruction.lane)] = id;
    }
  }
  for (BufferId output : WrittenBuffers(instruction)) {
    for (Cell& cell : CellsOf(output, buffers[output])) {
      cell = Cell{.last_write = id};
    }
  }
}

std::span<DependencyTracker::Cell> DependencyTracker::CellsOf(
    BufferId id, const Buffer& buffer) {
  if (buffer.arena == Arena::kStep) {
    if (buffer.parent >= 0) id = buffer.parent;
    if (static_cast<size_t>(id) >= step_cells_.size()) {
      step_cells_.resize(id + 1);
    }
    return {&step_cells_[id], 1};
  }
  auto index_of = [&](int64_t offset) {
    return std::lower_bound(boundaries_.begin(), boundaries_.end(), offset) -
           boundaries_.begin();
  };
  const auto begin = index_of(buffer.offset_bytes);
  const auto end = index_of(buffer.offset_bytes + buffer.bytes);
  return {persistent_cells_.data() + begin, static_cast<size_t>(end - begin)};
}

}  // namespace millrace
