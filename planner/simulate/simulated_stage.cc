#include "planner/simulate/simulated_stage.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "planner/program/op_table.h"

namespace millrace {

SimulatedStage::SimulatedStage(const Program* program)
    : program_(program),
      done_(program->instructions.size(), false),
      event_index_(program->instructions.size(), -1) {
  events_.reserve(program->instructions.size());
}

InstructionId SimulatedStage::NextReady(Lane lane) const {
  const int idx = static_cast<int>(lane);
  const std::vector<InstructionId>& order = program_->lanes[idx];
  if (busy_[idx] || next_[idx] == order.size()) return -1;
  const InstructionId id = order[next_[idx]];
  for (InstructionId wait : program_->instructions[id].waits) {
    if (!done_[wait]) return -1;
  }
  return id;
}

void SimulatedStage::Begin(InstructionId id, double now_s) {
  busy_[static_cast<int>(program_->instructions[id].lane)] = true;
  event_index_[id] = static_cast<int32_t>(events_.size());
  events_.push_back({.instruction = id,
                     .start_s = now_s,
                     .end_s = std::numeric_limits<double>::infinity()});
}

void SimulatedStage::End(InstructionId id, double now_s) {
  const Lane lane = program_->instructions[id].lane;
  TimelineEvent& event = events_[event_index_[id]];
  event.end_s = now_s;
  if (lane == Lane::kCompute) {
    const double seconds = now_s - event.start_s;
    for (double& squared_s : squared_s_) squared_s += seconds * seconds;
  }
  done_[id] = true;
  busy_[static_cast<int>(lane)] = false;
  ++next_[static_cast<int>(lane)];
}

bool SimulatedStage::FillsTheDevice() const {
  if (computing < 0) return false;
  return Describe(program_->instructions[computing].kind).fills_device;
}

std::vector<std::string> SimulatedStage::DescribeStuck() const {
  std::vector<std::string> stuck;
  for (int lane = 0; lane < kNumLanes; ++lane) {
    const std::vector<InstructionId>& order = program_->lanes[lane];
    if (next_[lane] == order.size()) continue;
    const InstructionId id = order[next_[lane]];
    stuck.push_back(absl::StrCat(
        "stage ", program_->stage, " ", LaneName(static_cast<Lane>(lane)),
        " at instruction ", id, " (", program_->instructions[id].name,
        ", micro-batch ", program_->instructions[id].microbatch_idx, ")"));
  }
  return stuck;
}

}  // namespace millrace
