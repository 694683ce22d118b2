#include "planner/lower/waits.h"

#include <algorithm>

namespace millrace {

DependencyTracker::DependencyTracker(std::span<const Buffer> persistent) {
  std::vector<int64_t>& boundaries = persistent_.boundaries;
  for (const Buffer& buffer : persistent) {
    boundaries.push_back(buffer.offset_bytes);
    boundaries.push_back(buffer.offset_bytes + buffer.bytes);
  }
  std::sort(boundaries.begin(), boundaries.end());
  boundaries.erase(std::unique(boundaries.begin(), boundaries.end()),
                   boundaries.end());
  persistent_.cells.resize(boundaries.size());
}

Dependencies DependencyTracker::DependenciesOf(
    const Instruction& instruction, std::span<const Buffer> buffers) {
  Dependencies dependencies;
  auto add = [&](InstructionId id) {
    if (id >= 0) dependencies.push_back(id);
  };
  for (BufferId id : instruction.inputs) {
    for (const Cell& cell : CellsOf(id, buffers)) add(cell.last_write);
  }
  for (BufferId id : WrittenBuffers(instruction)) {
    for (const Cell& cell : CellsOf(id, buffers)) {
      add(cell.last_write);
      for (InstructionId read : cell.last_reads) add(read);
    }
  }
  return dependencies;
}

void DependencyTracker::Add(InstructionId id, const Instruction& instruction,
                            std::span<const Buffer> buffers) {
  for (BufferId input : instruction.inputs) {
    for (Cell& cell : CellsOf(input, buffers)) {
      cell.last_reads[static_cast<int>(instruction.lane)] = id;
    }
  }
  for (BufferId output : WrittenBuffers(instruction)) {
    for (Cell& cell : CellsOf(output, buffers)) {
      cell = Cell{.last_write = id};
    }
  }
}

size_t DependencyTracker::Cells::CutAt(int64_t offset) {
  const auto found =
      std::lower_bound(boundaries.begin(), boundaries.end(), offset);
  const size_t index = static_cast<size_t>(found - boundaries.begin());
  if (found != boundaries.end() && *found == offset) return index;
  // Both parts of a cut cell have the whole cell's history.
  const Cell cell = index == 0 ? Cell{} : cells[index - 1];
  boundaries.insert(found, offset);
  cells.insert(cells.begin() + static_cast<ptrdiff_t>(index), cell);
  return index;
}

std::span<DependencyTracker::Cell> DependencyTracker::CellsOf(
    BufferId id, std::span<const Buffer> buffers) {
  const Buffer& buffer = buffers[id];
  Cells* cells = &persistent_;
  if (buffer.arena == Arena::kStep) {
    const bool is_part = buffer.parent >= 0;
    const BufferId whole = is_part ? buffer.parent : id;
    if (static_cast<size_t>(whole) >= uncut_.size()) {
      uncut_.resize(buffers.size());
    }
    if (is_part && !cut_.contains(whole)) {
      Cells& of_whole = cut_[whole];
      of_whole.boundaries = {0, buffers[whole].bytes};
      of_whole.cells = {uncut_[whole], Cell{}};
    }
    const auto found = cut_.find(whole);
    if (found == cut_.end()) return {&uncut_[whole], 1};
    cells = &found->second;
  }
  const size_t begin = cells->CutAt(buffer.offset_bytes);
  const size_t end = cells->CutAt(buffer.offset_bytes + buffer.bytes);
  return {cells->cells.data() + begin, end - begin};
}

}  // namespace millrace
