#include "planner/lower/common_order.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/program/collective_matches.h"

namespace millrace {
namespace {

constexpr int64_t kNotHandedOver = -1;
constexpr int64_t kNsPerUs = 1000;

// The costs of passes for a layout that states none.
constexpr ListedStage kAnyStage = {
    .forward_us = 1000, .input_gradient_us = 1000, .weight_gradient_us = 1000};

// Shares the time of a pass among its ops. Each op takes a nanosecond at least,
// so that an op starts later than those that it waits for.
class OpTimes {
 public:
  explicit OpTimes(const Program& program)
      : stage_(program.layout.listed_stages.empty()
                   ? kAnyStage
                   : program.layout.listed_stages[program.stage]),
        transfer_ns_(
            std::max(int64_t{1},
                     int64_t{program.layout.listed_transfer_us} * kNsPerUs)) {
    for (const Instruction& in : program.instructions) {
      if (in.lane != Lane::kCompute || in.microbatch_idx != 0) continue;
      ++num_ops_[static_cast<int>(PassOf(in))];
    }
  }

  int64_t NsOf(const Instruction& in) const {
    if (IsTransfer(in.kind)) return transfer_ns_;
    if (in.lane != Lane::kCompute || in.microbatch_idx < 0) return 1;
    const Pass pass = PassOf(in);
    const int64_t pass_us[] = {stage_.forward_us, stage_.input_gradient_us,
                               stage_.weight_gradient_us};
    return std::max(int64_t{1},
                    pass_us[static_cast<int>(pass)] * kNsPerUs /
                        std::max(1, num_ops_[static_cast<int>(pass)]));
  }

 private:
  enum class Pass : uint8_t { kForward, kInputGradient, kWeightGradient };

  static Pass PassOf(const Instruction& in) {
    if (in.phase == Phase::kForward) return Pass::kForward;
    return in.phase == Phase::kWeightGradient ? Pass::kWeightGradient
                                              : Pass::kInputGradient;
  }

  const ListedStage stage_;
  const int64_t transfer_ns_;
  std::array<int32_t, 3> num_ops_{};
};

// When all instructions start if every lane runs as soon as it can.
class StartTimes {
 public:
  explicit StartTimes(std::span<const Program* const> programs)
      : programs_(programs) {
    for (const Program* program : programs) {
      const size_t size = program->instructions.size();
      stages_.push_back({.times = OpTimes(*program),
                         .start_ns = std::vector<int64_t>(size, kNotHandedOver),
                         .end_ns = std::vector<int64_t>(size, kNotHandedOver),
                         .meeting = std::vector<int32_t>(size, -1)});
    }
  }

  absl::Status Find() {
    ASSIGN_OR_RETURN(meetings_, StageMeetingsOf(programs_));
    for (size_t i = 0; i < meetings_.size(); ++i) {
      for (const StageInstruction& ref : meetings_[i]) {
        stages_[ref.stage].meeting[ref.id] = static_cast<int32_t>(i);
      }
    }
    for (size_t stage = 0; stage < programs_.size(); ++stage) {
      to_run_.push_back(static_cast<int32_t>(stage));
    }
    while (!to_run_.empty()) {
      const int32_t stage = to_run_.back();
      to_run_.pop_back();
      while (RunHeads(stage)) {
      }
    }
    for (size_t stage = 0; stage < programs_.size(); ++stage) {
      const std::vector<int64_t>& starts = stages_[stage].start_ns;
      const auto stuck =
          std::find(starts.begin(), starts.end(), kNotHandedOver);
      if (stuck == starts.end()) continue;
      return absl::InternalError(absl::StrCat(
          "stage ", stage, " waits for ever for '",
          programs_[stage]->instructions[stuck - starts.begin()].name, "'"));
    }
    return absl::OkStatus();
  }

  // The stage's instructions by their start. If several start together,
  // meetings come first, in the same order on all stages.
  std::vector<InstructionId> OrderOf(int32_t stage) const {
    const Stage& s = stages_[stage];
    std::vector<InstructionId> order(s.start_ns.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<InstructionId>(i);
    }
    const auto key = [&](InstructionId id) {
      const int32_t meeting = s.meeting[id];
      return std::tuple(s.start_ns[id], meeting < 0,
                        meeting < 0 ? id : meeting);
    };
    std::sort(
        order.begin(), order.end(),
        [&](InstructionId a, InstructionId b) { return key(a) < key(b); });
    return order;
  }

 private:
  struct Stage {
    OpTimes times;
    std::vector<int64_t> start_ns, end_ns;  // By instruction.
    std::vector<int32_t> meeting;           // By instruction; -1: none.
    std::array<size_t, kNumLanes> next{};   // Position in each lane.
    std::array<int64_t, kNumLanes> free_ns{};
  };

  const Instruction& InstructionOf(StageInstruction ref) const {
    return programs_[ref.stage]->instructions[ref.id];
  }

  // When the instruction at the head of its lane could start by itself.
  int64_t ReadyAt(StageInstruction ref) const {
    const Stage& stage = stages_[ref.stage];
    const Instruction& in = InstructionOf(ref);
    const int lane = static_cast<int>(in.lane);
    const std::vector<InstructionId>& order = programs_[ref.stage]->lanes[lane];
    const size_t next = stage.next[lane];
    if (next == order.size() || order[next] != ref.id) return kNotHandedOver;
    int64_t ready_ns = stage.free_ns[lane];
    for (const InstructionId wait : in.waits) {
      if (stage.end_ns[wait] == kNotHandedOver) return kNotHandedOver;
      ready_ns = std::max(ready_ns, stage.end_ns[wait]);
    }
    return ready_ns;
  }

  // True if anything of the stage has run.
  bool RunHeads(int32_t stage) {
    bool ran = false;
    for (int lane = 0; lane < kNumLanes; ++lane) {
      const std::vector<InstructionId>& order = programs_[stage]->lanes[lane];
      while (stages_[stage].next[lane] < order.size() &&
             Run({stage, order[stages_[stage].next[lane]]})) {
        ran = true;
      }
    }
    return ran;
  }

  // Runs the instruction with all that it meets. False: one of them cannot run
  // yet.
  bool Run(StageInstruction ref) {
    const int32_t meeting = stages_[ref.stage].meeting[ref.id];
    std::span<const StageInstruction> members(&ref, 1);
    if (meeting >= 0) members = meetings_[meeting];
    int64_t start_ns = 0;
    for (const StageInstruction& member : members) {
      const int64_t ready_ns = ReadyAt(member);
      if (ready_ns == kNotHandedOver) return false;
      start_ns = std::max(start_ns, ready_ns);
    }
    for (const StageInstruction& member : members) {
      Stage& stage = stages_[member.stage];
      const Instruction& in = InstructionOf(member);
      const int lane = static_cast<int>(in.lane);
      stage.start_ns[member.id] = start_ns;
      stage.end_ns[member.id] = start_ns + stage.times.NsOf(in);
      stage.free_ns[lane] = stage.end_ns[member.id];
      ++stage.next[lane];
      if (member.stage != ref.stage) to_run_.push_back(member.stage);
    }
    return true;
  }

  const std::span<const Program* const> programs_;
  std::vector<Stage> stages_;
  std::vector<StageMeeting> meetings_;
  std::vector<int32_t> to_run_;
};

// `order`: the old numbers in the new order.
void Renumber(const std::vector<InstructionId>& order, Program* program) {
  std::vector<InstructionId> new_number(order.size());
  std::vector<Instruction> instructions;
  instructions.reserve(order.size());
  for (std::vector<InstructionId>& lane : program->lanes) lane.clear();
  for (size_t i = 0; i < order.size(); ++i) {
    const auto number = static_cast<InstructionId>(i);
    new_number[order[i]] = number;
    Instruction& in = program->instructions[order[i]];
    for (InstructionId& wait : in.waits) wait = new_number[wait];
    std::sort(in.waits.begin(), in.waits.end());
    program->lanes[static_cast<int>(in.lane)].push_back(number);
    instructions.push_back(std::move(in));
  }
  program->instructions = std::move(instructions);
}

}  // namespace

bool NeedsCommonOrder(const Layout& layout) {
  return layout.pipeline > 1 && layout.copy_engines.transfers;
}

absl::Status PutIntoCommonOrder(std::span<Program> programs) {
  std::vector<const Program*> borrowed;
  for (const Program& program : programs) borrowed.push_back(&program);
  StartTimes times(borrowed);
  RETURN_IF_ERROR(times.Find());
  for (size_t stage = 0; stage < programs.size(); ++stage) {
    Renumber(times.OrderOf(static_cast<int32_t>(stage)), &programs[stage]);
  }
  return absl::OkStatus();
}

}  // namespace millrace
