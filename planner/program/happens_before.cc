#include "planner/program/happens_before.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace millrace {
namespace {

void MergeInto(LaneClock& clock, const LaneClock& other) {
  for (int i = 0; i < kNumLanes; ++i) clock[i] = std::max(clock[i], other[i]);
}

}  // namespace

HappensBefore::HappensBefore(std::span<const Instruction> instructions) {
  Reserve(instructions.size());
  for (const Instruction& instruction : instructions) {
    Append(instruction.lane, instruction.waits);
  }
}

void HappensBefore::Reserve(size_t num_instructions) {
  lanes_.reserve(num_instructions);
  position_.reserve(num_instructions);
  clocks_.reserve(num_instructions);
}

void HappensBefore::Append(Lane lane, std::span<const InstructionId> waits) {
  LaneClock clock = ClockOfNext(lane);
  for (InstructionId wait : waits) {
    CHECK(wait >= 0 && wait < size()) << "wait " << wait << " of " << size();
    MergeInto(clock, ClockAfter(wait));
  }
  const int index = static_cast<int>(lane);
  const InstructionId before = last_on_lane_[index];
  last_on_lane_[index] = size();
  lanes_.push_back(lane);
  position_.push_back(before < 0 ? 0 : position_[before] + 1);
  clocks_.push_back(clock);
}

Waits HappensBefore::NeededWaits(Lane lane, Dependencies dependencies) const {
  // Latest first: an instruction can only be implied by a later one.
  std::sort(dependencies.begin(), dependencies.end(), std::greater<>());
  LaneClock clock = ClockOfNext(lane);
  Waits waits;
  for (InstructionId id : dependencies) {
    if (lanes_[id] == lane || position_[id] < clock[Index(id)]) continue;
    waits.push_back(id);
    MergeInto(clock, ClockAfter(id));
  }
  std::reverse(waits.begin(), waits.end());
  return waits;
}

LaneClock HappensBefore::ClockAfter(InstructionId id) const {
  LaneClock clock = clocks_[id];
  clock[Index(id)] = position_[id] + 1;
  return clock;
}

LaneClock HappensBefore::ClockOfNext(Lane lane) const {
  const InstructionId last = last_on_lane_[static_cast<int>(lane)];
  return last < 0 ? LaneClock{} : ClockAfter(last);
}

}  // namespace millrace
