// Tells which instructions of a rank have surely finished when another one
// starts. Lanes run in order and instructions wait for others; vector clocks
// over the lanes combine both.

#ifndef MILLRACE_PLANNER_PROGRAM_HAPPENS_BEFORE_H_
#define MILLRACE_PLANNER_PROGRAM_HAPPENS_BEFORE_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "planner/program/program.h"

namespace millrace {

// clock[lane]: how many instructions of the lane have finished for certain.
using LaneClock = std::array<int32_t, kNumLanes>;

// Instructions that another one must follow; may hold one more than once.
using Dependencies = absl::InlinedVector<InstructionId, 16>;

// Instructions are appended in a valid sequential order and numbered from zero.
class HappensBefore {
 public:
  HappensBefore() = default;
  // Takes all instructions of a Program; its waits must point backward.
  explicit HappensBefore(std::span<const Instruction> instructions);

  void Reserve(size_t num_instructions);
  void Append(Lane lane, std::span<const InstructionId> waits);

  // The smallest set of waits, ascending, after which an instruction appended
  // to `lane` next would start after all of `dependencies`.
  Waits NeededWaits(Lane lane, Dependencies dependencies) const;

  // True if `first` has finished whenever `second` starts.
  bool FinishedBefore(InstructionId first, InstructionId second) const {
    return position_[first] < clocks_[second][Index(first)];
  }

  Lane lane(InstructionId id) const { return lanes_[id]; }
  // Index of an instruction in its lane.
  int32_t position(InstructionId id) const { return position_[id]; }
  // The instructions that have finished when this one starts.
  const LaneClock& clock(InstructionId id) const { return clocks_[id]; }
  InstructionId size() const {
    return static_cast<InstructionId>(lanes_.size());
  }

 private:
  int Index(InstructionId id) const { return static_cast<int>(lanes_[id]); }
  // The instructions that have finished once `id` has.
  LaneClock ClockAfter(InstructionId id) const;
  LaneClock ClockOfNext(Lane lane) const;

  std::vector<Lane> lanes_;
  std::vector<int32_t> position_;
  std::vector<LaneClock> clocks_;
  std::array<InstructionId, kNumLanes> last_on_lane_ = {-1, -1, -1, -1,
                                                        -1, -1, -1, -1};
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_HAPPENS_BEFORE_H_
