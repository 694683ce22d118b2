// CheckProgram: what must hold of a Program, found anew from its instructions,
// waits and offsets alone, so that it shares no mistake with
// planner/lower/lower.cc.

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/program/happens_before.h"
#include "planner/program/operand_check.h"
#include "planner/program/program.h"

namespace millrace {
namespace {

std::string NameOf(const Program& program, InstructionId id) {
  const Instruction& instruction = program.instructions[id];
  return absl::StrCat(
      "instruction ", id, " (", instruction.name,
      instruction.microbatch_idx < 0
          ? ""
          : absl::StrCat(", micro-batch ", instruction.microbatch_idx),
      ", ", LaneName(instruction.lane), ")");
}

absl::Status CheckLanesAndWaits(const Program& program) {
  const InstructionId size =
      static_cast<InstructionId>(program.instructions.size());
  std::array<size_t, kNumLanes> next{};
  for (InstructionId id = 0; id < size; ++id) {
    const Instruction& instruction = program.instructions[id];
    if (instruction.lane != LaneOf(instruction.kind, instruction.attributes)) {
      return absl::InternalError(
          absl::StrCat(NameOf(program, id), " is on a wrong lane"));
    }
    const std::vector<InstructionId>& lane =
        program.lanes[static_cast<int>(instruction.lane)];
    size_t& position = next[static_cast<int>(instruction.lane)];
    if (position >= lane.size() || lane[position] != id) {
      return absl::InternalError(absl::StrCat(
          NameOf(program, id), " is not at its place in its lane's list"));
    }
    ++position;
    for (InstructionId wait : instruction.waits) {
      if (wait < 0 || wait >= id) {
        return absl::InternalError(absl::StrCat(NameOf(program, id),
                                                " waits for instruction ", wait,
                                                ", which is not before"));
      }
      if (program.instructions[wait].lane == instruction.lane) {
        return absl::InternalError(
            absl::StrCat(NameOf(program, id), " waits for ",
                         NameOf(program, wait), " on its own lane"));
      }
    }
  }
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (next[lane] != program.lanes[lane].size()) {
      return absl::InternalError(absl::StrCat(
          "lane ", LaneName(static_cast<Lane>(lane)), " lists ",
          program.lanes[lane].size(), " instructions instead of ", next[lane]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBuffers(const Program& program) {
  for (const Buffer& buffer : program.buffers) {
    const int64_t arena_bytes = buffer.arena == Arena::kStep
                                    ? program.step_arena_bytes
                                    : program.persistent_arena_bytes;
    int64_t bytes = DTypeBytes(buffer.dtype);
    // Blocks lie without gaps, whatever bucket they belong to.
    const int64_t alignment = DTypeNumbers(buffer.dtype) > 1
                                  ? static_cast<int64_t>(sizeof(float))
                                  : kBufferAlignment;
    for (int64_t dim : buffer.dims) bytes *= dim;
    if (buffer.bytes != bytes || buffer.offset_bytes < 0 ||
        buffer.offset_bytes % alignment != 0 ||
        buffer.offset_bytes + buffer.bytes > arena_bytes) {
      return absl::InternalError(absl::StrCat(
          "buffer ", buffer.name, " at ", buffer.offset_bytes, " of ",
          buffer.bytes, " bytes is misaligned, of a wrong size or outside its ",
          "arena of ", arena_bytes, " bytes"));
    }
    if (buffer.parent < 0) continue;
    const Buffer& parent = program.buffers[buffer.parent];
    if (buffer.arena != Arena::kStep || parent.arena != Arena::kStep ||
        parent.parent >= 0 || parent.dtype != buffer.dtype ||
        buffer.offset_bytes < parent.offset_bytes ||
        buffer.offset_bytes + buffer.bytes >
            parent.offset_bytes + parent.bytes) {
      return absl::InternalError(
          absl::StrCat("buffer ", buffer.name, " is no part of ", parent.name));
    }
  }
  const BufferId size = static_cast<BufferId>(program.buffers.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    for (const Operands* operands :
         {&instruction.inputs, &instruction.outputs}) {
      for (BufferId id : *operands) {
        if (id >= 0 && id < size) continue;
        return absl::InternalError(
            absl::StrCat(NameOf(program, static_cast<InstructionId>(i)),
                         " has operand ", id, " of ", size, " buffers"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckInstructions(const Program& program) {
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const absl::Status status =
        CheckInstruction(program, program.instructions[i]);
    if (status.ok()) continue;
    return absl::InternalError(
        absl::StrCat(NameOf(program, static_cast<InstructionId>(i)), ": ",
                     status.message()));
  }
  return absl::OkStatus();
}

// Replays the instructions on one arena, cut at every buffer's boundaries.
class AccessCheck {
 public:
  AccessCheck(const Program& program, const HappensBefore& order, Arena arena)
      : program_(program), order_(order), arena_(arena) {
    for (const Buffer& buffer : program.buffers) {
      if (buffer.arena != arena) continue;
      boundaries_.push_back(buffer.offset_bytes);
      boundaries_.push_back(buffer.offset_bytes + buffer.bytes);
    }
    std::sort(boundaries_.begin(), boundaries_.end());
    boundaries_.erase(std::unique(boundaries_.begin(), boundaries_.end()),
                      boundaries_.end());
    cells_.resize(boundaries_.size());
  }

  absl::Status Run() {
    for (InstructionId id = 0; id < order_.size(); ++id) {
      const Instruction& instruction = program_.instructions[id];
      for (BufferId buffer : instruction.inputs) {
        RETURN_IF_ERROR(Read(id, buffer));
      }
      for (BufferId buffer : WrittenBuffers(instruction)) {
        RETURN_IF_ERROR(Write(id, buffer));
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Cell {
    InstructionId writer = -1;
    BufferId written_as = -1;            // A whole buffer, not a part.
    std::vector<InstructionId> readers;  // Since.
  };

  absl::Status Read(InstructionId id, BufferId buffer) {
    if (program_.buffers[buffer].arena != arena_) return absl::OkStatus();
    for (size_t i = Begin(buffer); i < End(buffer); ++i) {
      Cell& cell = cells_[i];
      if (arena_ == Arena::kStep && cell.written_as != Whole(buffer)) {
        return absl::InternalError(absl::StrCat(
            NameOf(program_, id), " reads ", program_.buffers[buffer].name,
            ", whose bytes ",
            cell.written_as < 0
                ? "nothing has written"
                : absl::StrCat("hold ",
                               program_.buffers[cell.written_as].name)));
      }
      RETURN_IF_ERROR(RequireOrder(cell.writer, id, buffer));
      cell.readers.push_back(id);
    }
    return absl::OkStatus();
  }

  absl::Status Write(InstructionId id, BufferId buffer) {
    if (program_.buffers[buffer].arena != arena_) return absl::OkStatus();
    for (size_t i = Begin(buffer); i < End(buffer); ++i) {
      Cell& cell = cells_[i];
      RETURN_IF_ERROR(RequireOrder(cell.writer, id, buffer));
      for (InstructionId reader : cell.readers) {
        RETURN_IF_ERROR(RequireOrder(reader, id, buffer));
      }
      cell.writer = id;
      cell.written_as = Whole(buffer);
      cell.readers.clear();
    }
    return absl::OkStatus();
  }

  absl::Status RequireOrder(InstructionId first, InstructionId second,
                            BufferId buffer) const {
    if (first < 0 || first == second || order_.FinishedBefore(first, second)) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat(
        NameOf(program_, second), " touches the bytes of ",
        program_.buffers[buffer].name, " without being certain that ",
        NameOf(program_, first), " has finished with them"));
  }

  BufferId Whole(BufferId id) const {
    const BufferId parent = program_.buffers[id].parent;
    return parent < 0 ? id : parent;
  }
  size_t IndexOf(int64_t offset) const {
    return std::lower_bound(boundaries_.begin(), boundaries_.end(), offset) -
           boundaries_.begin();
  }
  size_t Begin(BufferId id) const {
    return IndexOf(program_.buffers[id].offset_bytes);
  }
  size_t End(BufferId id) const {
    return IndexOf(program_.buffers[id].offset_bytes +
                   program_.buffers[id].bytes);
  }

  const Program& program_;
  const HappensBefore& order_;
  const Arena arena_;
  std::vector<int64_t> boundaries_;
  std::vector<Cell> cells_;
};

}  // namespace

absl::Status CheckProgram(const Program& program) {
  RETURN_IF_ERROR(CheckLanesAndWaits(program));
  RETURN_IF_ERROR(CheckBuffers(program));
  RETURN_IF_ERROR(CheckInstructions(program));
  const HappensBefore order(program.instructions);
  RETURN_IF_ERROR(AccessCheck(program, order, Arena::kPersistent).Run());
  return AccessCheck(program, order, Arena::kStep).Run();
}

}  // namespace millrace
