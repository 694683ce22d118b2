#include "planner/simulate/passes_of_programs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/pipeline/layout_order.h"
#include "planner/pipeline/pass_order.h"
#include "planner/program/collective_matches.h"
#include "planner/simulate/pass_ops.h"
#include "planner/simulate/stage_passes.h"

namespace millrace {
namespace {

bool IsSend(Lane lane) {
  return lane == Lane::kSendNext || lane == Lane::kSendPrevious;
}

// The ops of all stages.
class ProgramPasses {
 public:
  ProgramPasses(std::span<const StageSimulation> stages,
                const SimulationOptions& options, const PassOrder& order)
      : inputs_(stages),
        list_(static_cast<int32_t>(stages.size())),
        op_of_(stages.size()) {
    for (size_t i = 0; i < stages.size(); ++i) {
      stages_.emplace_back(stages[i], options, order[i]);
      op_of_[i].assign(stages[i].program->instructions.size(), -1);
    }
  }

  absl::StatusOr<PassOps> Build() {
    for (StagePasses& stage : stages_) stage.AddTo(&list_);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      AddTraffic(static_cast<int32_t>(i));
    }
    RETURN_IF_ERROR(AddMeetings());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      JoinLanes(static_cast<int32_t>(i));
    }
    return list_.Sorted();
  }

 private:
  const Instruction& InstructionOf(StageInstruction ref) const {
    return inputs_[ref.stage].program->instructions[ref.id];
  }
  StepOp OpOf(StageInstruction ref) const {
    const StageSimulation& input = inputs_[ref.stage];
    const bool by_copy_engines =
        !input.by_copy_engines.empty() && input.by_copy_engines[ref.id];
    return {.seconds = input.seconds[ref.id],
            .stage = ref.stage,
            .lane = InstructionOf(ref).lane,
            .resource = by_copy_engines ? OpResource::kCopyEngines
                                        : OpResource::kNetwork};
  }

  // Gathers and reductions.
  void AddTraffic(int32_t stage) {
    const Program& program = *inputs_[stage].program;
    std::map<std::pair<Phase, int32_t>, int32_t> num_buckets;
    for (const InstructionId id :
         program.lanes[static_cast<size_t>(Lane::kDataComm)]) {
      const Instruction& instruction = program.instructions[id];
      const PassEventKind kind = instruction.phase == Phase::kParameterGather
                                     ? PassEventKind::kParameterGather
                                     : PassEventKind::kGradientReduction;
      int32_t& bucket =
          num_buckets[{instruction.phase, instruction.microbatch_idx}];
      op_of_[stage][id] =
          list_.Add(OpOf({stage, id}),
                    {.kind = kind, .chunk_idx = stage, .bucket_idx = bucket++});
    }
  }

  // Transfers, and what all stages do together.
  absl::Status AddMeetings() {
    std::vector<const Program*> programs;
    for (const StageSimulation& input : inputs_) {
      programs.push_back(input.program);
    }
    ASSIGN_OR_RETURN(const std::vector<StageMeeting> all,
                     StageMeetingsOf(programs));
    // Lanes are in order, and so are the transfers of each.
    std::vector<std::pair<StageInstruction, StageInstruction>> transfers;
    for (const StageMeeting& meeting : all) {
      const bool is_transfer =
          meeting.size() == 2 &&
          InstructionOf(meeting[0]).lane != InstructionOf(meeting[1]).lane;
      if (is_transfer) {
        const bool is_sent_first = IsSend(InstructionOf(meeting[0]).lane);
        transfers.emplace_back(meeting[is_sent_first ? 0 : 1],
                               meeting[is_sent_first ? 1 : 0]);
        continue;
      }
      // Each stage's share of a world collective waits for all stages.
      for (const StageInstruction& to : meeting) {
        for (const StageInstruction& from : meeting) {
          if (to.stage == from.stage) continue;
          list_.Wait(op_of_[to.stage][to.id],
                     stages_[from.stage].OpBeforeKept(from.id).op);
        }
      }
    }
    std::sort(transfers.begin(), transfers.end(),
              [](const auto& a, const auto& b) {
                return std::pair(a.first.stage, a.first.id) <
                       std::pair(b.first.stage, b.first.id);
              });
    for (const auto& [from, to] : transfers) AddTransfer(from, to);
    return absl::OkStatus();
  }

  void AddTransfer(StageInstruction from, StageInstruction to) {
    const PassOp what{.kind = InstructionOf(from).lane == Lane::kSendNext
                                  ? PassEventKind::kActivationTransfer
                                  : PassEventKind::kGradientTransfer,
                      .chunk_idx = from.stage,
                      .microbatch_idx = InstructionOf(from).microbatch_idx};
    StepOp transfer = OpOf(from);
    transfer.seconds = std::max(transfer.seconds, OpOf(to).seconds);
    transfer.receiver = to.stage;
    const auto [before, delay_s] = stages_[from.stage].OpBeforeKept(from.id);
    const int32_t after =
        delay_s > 0 ? AddDelay(before, transfer, transfer.lane, what, delay_s)
                    : before;
    const int32_t id = list_.Add(transfer, what);
    if (transfer.resource == OpResource::kNetwork) {
      list_.step_op(id).carries = after;
    }
    if (delay_s <= 0) list_.Wait(id, after);
    op_of_[from.stage][from.id] = op_of_[to.stage][to.id] = id;
  }
  // An op after `after` that takes nothing but time, for a transfer.
  int32_t AddDelay(int32_t after, const StepOp& transfer, Lane lane,
                   PassOp what, double seconds) {
    const int32_t id = list_.Add({.seconds = seconds,
                                  .stage = transfer.stage,
                                  .receiver = transfer.receiver,
                                  .lane = lane,
                                  .resource = OpResource::kHost},
                                 what);
    list_.Wait(id, after);
    return id;
  }

  // Adds the waits between lanes.
  void JoinLanes(int32_t stage) {
    const StagePasses& passes = stages_[stage];
    for (size_t i = 0; i < op_of_[stage].size(); ++i) {
      const auto id = static_cast<InstructionId>(i);
      const int32_t op = op_of_[stage][id];
      if (op < 0) continue;
      for (const InstructionId wait : InstructionOf({stage, id}).waits) {
        list_.Wait(op, op_of_[stage][wait]);
      }
      for (const StagePasses::OpAfter& after : passes.OpsAfterKept(id)) {
        list_.Wait(after.op, after.delay_s > 0
                                 ? AddDelay(op, list_.step_op(op),
                                            InstructionOf({stage, id}).lane,
                                            list_.what(op), after.delay_s)
                                 : op);
      }
      if (IsSend(InstructionOf({stage, id}).lane)) continue;
      list_.Wait(op, passes.OpBeforeKept(id).op);
    }
  }

  const std::span<const StageSimulation> inputs_;
  std::vector<StagePasses> stages_;
  PassOpList list_;
  // By stage and kept instruction. A transfer is one op for both ends.
  std::vector<std::vector<int32_t>> op_of_;
};

}  // namespace

absl::StatusOr<PassStep> StepOfPrograms(std::span<const StageSimulation> stages,
                                        const SimulationOptions& options) {
  const Layout& layout = stages[0].program->layout;
  PassStep step{.costs = {.num_stages = layout.pipeline,
                          .num_microbatches = layout.most_microbatches(),
                          .stage_of_chunk = {},
                          .chunks = {}},
                .order = {},
                .ends = {},
                .num_replicas = layout.data,
                .ranks_per_pass = layout.tensor};
  for (int32_t i = 0; i < layout.pipeline; ++i) {
    step.costs.stage_of_chunk.push_back(i);
    step.costs.chunks.emplace_back();
  }
  if (layout.schedule == Schedule::kListScheduled) {
    ASSIGN_OR_RETURN(step.order, ListedOrder(layout));
  } else {
    ASSIGN_OR_RETURN(step.order, OrderOf(layout.schedule, step.costs));
  }
  ProgramPasses passes(stages, options, step.order);
  ASSIGN_OR_RETURN(PassOps ops, passes.Build());
  step.ops = std::make_shared<const PassOps>(std::move(ops));
  return step;
}

}  // namespace millrace
