// The state of one pipeline stage in simulate_instructions.h: the position of
// each lane, and what is running. The simulator decides when an instruction
// ends.

#ifndef MILLRACE_PLANNER_SIMULATE_SIMULATED_STAGE_H_
#define MILLRACE_PLANNER_SIMULATE_SIMULATED_STAGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "planner/program/collective_matches.h"
#include "planner/program/program.h"
#include "planner/simulate/timeline.h"

namespace millrace {

class SimulatedStage {
 public:
  // `program` is borrowed.
  explicit SimulatedStage(const Program* program);

  size_t num_instructions() const { return done_.size(); }
  // The lane's next instruction, for Begin(), if the lane is free and all that
  // it waits for is done; else -1.
  InstructionId NextReady(Lane lane) const;
  void Begin(InstructionId id, double now_s);
  void End(InstructionId id, double now_s);

  // Whether what is computed holds every multiprocessor of a GPU until it ends.
  bool FillsTheDevice() const;
  // Squares of the seconds of ops since the last call for this lane, added up.
  double TakeSquaredSeconds(Lane lane) {
    return std::exchange(squared_s_[static_cast<int>(lane)], 0);
  }

  // A line for each lane's instruction that has not ended.
  std::vector<std::string> DescribeStuck() const;
  std::vector<TimelineEvent> TakeEvents() { return std::move(events_); }

  // The compute lane's work still to do, in seconds of a rank alone.
  InstructionId computing = -1;
  double remaining_s = 0;
  int32_t num_flows = 0;    // By NCCL, that this stage is a member of,
  int32_t num_copies = 0;   // and by copy engines.
  int32_t num_waiting = 0;  // By NCCL, begun here and not at the other end.
  // Communication that waits for `computing` to make room.
  std::vector<StageInstruction> crowded_out;
  // What copy engines have done but for the kernel behind it, likewise.
  std::vector<StageInstruction> waits_to_end;
  // Ranks of each stage on the host of this one's representative.
  std::vector<int32_t> neighbours;

 private:
  const Program* program_;
  std::array<size_t, kNumLanes> next_{};  // Position in each lane.
  std::array<bool, kNumLanes> busy_{};
  std::vector<bool> done_;
  std::vector<TimelineEvent> events_;
  std::vector<int32_t> event_index_;  // By instruction.
  std::array<double, kNumLanes> squared_s_{};
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_SIMULATED_STAGE_H_
