#include "planner/simulate/simulate_instructions.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "planner/cost/host_sharing.h"
#include "planner/profile/seeded_noise.h"
#include "planner/program/collective_matches.h"
#include "planner/program/op_table.h"
#include "planner/simulate/event_loop.h"

namespace millrace {
namespace {

absl::Status CheckInput(std::span<const StageSimulation> stages,
                        const SimulationOptions& options) {
  for (size_t i = 0; i < stages.size(); ++i) {
    const Program& program = *stages[i].program;
    if (program.stage != static_cast<int32_t>(i) ||
        program.layout.pipeline != static_cast<int32_t>(stages.size()) ||
        stages[i].seconds.size() != program.instructions.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "simulation input ", i, " of ", stages.size(), " is stage ",
          program.stage, " of ", program.layout.pipeline, " with ",
          stages[i].seconds.size(), " times for ", program.instructions.size(),
          " instructions"));
    }
  }
  if (!stages.empty() && options.ranks_per_host >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cannot simulate ", stages.size(), " stages with ",
                   options.ranks_per_host, " ranks a host"));
}

LoopRules RulesOf(const Layout& layout, const SimulationOptions& options) {
  LoopRules rules{.overlap = options.overlap,
                  .copy_engine_overlap = options.copy_engine_overlap,
                  .compute_contention = options.compute_contention,
                  .neighbours = {},
                  .arrival_spread = options.arrival_spread};
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    rules.neighbours.push_back(RanksBeside(
        layout, RankOf(layout, {.pipeline = stage}), options.ranks_per_host));
  }
  return rules;
}

// The instructions of all stages as ops: stage by stage, lane by lane, in each
// lane's order.
class InstructionOps {
 public:
  InstructionOps(std::span<const StageSimulation> stages,
                 const SimulationOptions& options)
      : inputs_(stages), options_(options) {}

  absl::Status Build() {
    step_.num_stages = static_cast<int32_t>(inputs_.size());
    op_of_.resize(inputs_.size());
    step_.wait_begin.push_back(0);
    for (const StageSimulation& input : inputs_) {
      std::vector<InstructionId> all;
      for (const std::vector<InstructionId>& lane : input.program->lanes) {
        all.insert(all.end(), lane.begin(), lane.end());
      }
      AddStage(input, all);
    }
    return AddMeetings();
  }

  PartTimes RunPart(const StageSimulation& input,
                    std::span<const InstructionId> part, BesidePart beside) {
    const Program& program = *input.program;
    step_.num_stages = program.layout.pipeline;
    op_of_.resize(step_.num_stages);
    step_.wait_begin.push_back(0);
    // First, so that no kernel of the part keeps it from starting.
    if (beside != BesidePart::kNothing) {
      AddCommunication(program.stage, beside);
    }
    const size_t first = step_.ops.size();
    id_of_.resize(first, -1);
    AddStage(input, part);
    const OpTimes times = RunOps(step_, RulesOf(program.layout, options_));
    return {.start_s = {times.start_s.begin() + first, times.start_s.end()},
            .end_s = {times.end_s.begin() + first, times.end_s.end()}};
  }

  const StepOps& step() const { return step_; }

  absl::Status CheckFinished(const OpTimes& times) const {
    size_t num_done = 0;
    for (const double end_s : times.end_s) num_done += end_s >= 0 ? 1 : 0;
    if (num_done == step_.ops.size()) return absl::OkStatus();
    std::vector<std::string> stuck;
    for (size_t i = 0; i < step_.ops.size(); ++i) {
      // The first one of its lane.
      const bool is_behind = i > 0 && times.end_s[i - 1] < 0 &&
                             step_.ops[i - 1].stage == step_.ops[i].stage &&
                             step_.ops[i - 1].lane == step_.ops[i].lane;
      if (times.end_s[i] >= 0 || is_behind) continue;
      const Program& program = *inputs_[step_.ops[i].stage].program;
      const Instruction& instruction = program.instructions[id_of_[i]];
      stuck.push_back(
          absl::StrCat("stage ", program.stage, " ", LaneName(instruction.lane),
                       " at instruction ", id_of_[i], " (", instruction.name,
                       ", micro-batch ", instruction.microbatch_idx, ")"));
    }
    return absl::InternalError(absl::StrCat(
        "the Programs deadlock: ", num_done, " of ", step_.ops.size(),
        " instructions ran; stuck: ", absl::StrJoin(stuck, "; ")));
  }

  Timeline TimelineOf(const OpTimes& times,
                      const std::vector<int32_t>& started) const {
    Timeline timeline{.step_time_s = times.step_time_s, .ranks = {}};
    const Layout& layout = inputs_[0].program->layout;
    for (int32_t stage = 0; stage < step_.num_stages; ++stage) {
      timeline.ranks.push_back({.rank = RankOf(layout, {.pipeline = stage}),
                                .stage = stage,
                                .events = {}});
      timeline.ranks.back().events.reserve(op_of_[stage].size());
    }
    for (const int32_t op : started) {
      timeline.ranks[step_.ops[op].stage].events.push_back(
          {.instruction = id_of_[op],
           .start_s = times.start_s[op],
           .end_s = times.end_s[op]});
    }
    return timeline;
  }

 private:
  // Adds the ops of one stage, lane by lane.
  void AddStage(const StageSimulation& input,
                std::span<const InstructionId> instructions) {
    const Program& program = *input.program;
    std::vector<int32_t>& op_of = op_of_[program.stage];
    op_of.assign(program.instructions.size(), -1);
    const auto first = static_cast<int32_t>(id_of_.size());
    for (const InstructionId id : instructions) {
      op_of[id] = static_cast<int32_t>(id_of_.size());
      id_of_.push_back(id);
    }
    for (auto op = first; op < static_cast<int32_t>(id_of_.size()); ++op) {
      const Instruction& instruction = program.instructions[id_of_[op]];
      if (op > first &&
          program.instructions[id_of_[op - 1]].lane == instruction.lane) {
        step_.waits.push_back(op - 1);
      }
      for (const InstructionId wait : instruction.waits) {
        if (op_of[wait] >= 0) {
          step_.waits.push_back(op_of[wait]);
          continue;
        }
        // An instruction that is left out ends at once, but not before those
        // that it waits for.
        for (const InstructionId before : program.instructions[wait].waits) {
          if (op_of[before] >= 0) step_.waits.push_back(op_of[before]);
        }
      }
      step_.wait_begin.push_back(static_cast<int32_t>(step_.waits.size()));
      step_.ops.push_back(OpOf(input, id_of_[op]));
    }
  }

  // Adds communication that goes on longer than any step, or that waits for a
  // peer that never comes.
  void AddCommunication(int32_t stage, BesidePart beside) {
    constexpr double kLongerThanAnyStep = 1e6;
    const auto op = static_cast<int32_t>(step_.ops.size());
    step_.ops.push_back({.seconds = kLongerThanAnyStep,
                         .stage = stage,
                         .lane = Lane::kDataComm,
                         .resource = OpResource::kNetwork});
    step_.wait_begin.push_back(static_cast<int32_t>(step_.waits.size()));
    if (beside != BesidePart::kWaitForPeer) return;
    step_.ops.back().meeting = 0;
    step_.ops.push_back(step_.ops.back());
    step_.waits.push_back(op);
    step_.wait_begin.push_back(static_cast<int32_t>(step_.waits.size()));
    step_.meetings.push_back({op, op + 1});
  }

  // The expected largest of as many normal draws as the group has ranks.
  double LatecomersOf(const Layout& layout, Group group) {
    if (options_.arrival_spread == 0) return 0;
    const int32_t num_ranks = group == Group::kWorld
                                  ? layout.num_ranks() / layout.pipeline
                                  : GroupSize(layout, group);
    const auto [known, is_new] = latecomers_.try_emplace(num_ranks, 0);
    if (is_new) known->second = LargestOfNormals(num_ranks);
    return known->second;
  }

  StepOp OpOf(const StageSimulation& input, InstructionId id) {
    const Instruction& instruction = input.program->instructions[id];
    StepOp op{.seconds = input.seconds[id],
              .stage = input.program->stage,
              .lane = instruction.lane};
    if (instruction.lane == Lane::kCompute) {
      op.fills_device = Describe(instruction.kind).fills_device;
      return op;
    }
    if (instruction.lane == Lane::kHost) {
      op.resource = OpResource::kHost;
      return op;
    }
    const bool by_copy_engines =
        !input.by_copy_engines.empty() && input.by_copy_engines[id];
    op.resource =
        by_copy_engines ? OpResource::kCopyEngines : OpResource::kNetwork;
    if (IsCollective(instruction.kind)) {
      op.ends_by_kernel = by_copy_engines;
      op.latecomers = LatecomersOf(
          input.program->layout,
          std::get<CollectiveAttributes>(instruction.attributes).group);
    }
    return op;
  }

  absl::Status AddMeetings() {
    std::vector<const Program*> programs;
    for (const StageSimulation& input : inputs_) {
      programs.push_back(input.program);
    }
    ASSIGN_OR_RETURN(const std::vector<StageMeeting> all,
                     StageMeetingsOf(programs));
    for (const StageMeeting& meeting : all) {
      std::vector<int32_t> members;
      for (const StageInstruction& ref : meeting) {
        members.push_back(op_of_[ref.stage][ref.id]);
        step_.ops[members.back()].meeting =
            static_cast<int32_t>(step_.meetings.size());
      }
      step_.meetings.push_back(std::move(members));
    }
    return absl::OkStatus();
  }

  const std::span<const StageSimulation> inputs_;
  const SimulationOptions& options_;
  StepOps step_;
  std::vector<std::vector<int32_t>> op_of_;  // By stage and instruction.
  std::vector<InstructionId> id_of_;         // By op.
  std::map<int32_t, double> latecomers_;     // By the ranks of a group.
};

}  // namespace

absl::StatusOr<Timeline> Simulate(std::span<const StageSimulation> stages,
                                  const SimulationOptions& options,
                                  const std::stop_token& stop) {
  RETURN_IF_ERROR(CheckInput(stages, options));
  InstructionOps ops(stages, options);
  RETURN_IF_ERROR(ops.Build());
  const LoopRules rules = RulesOf(stages[0].program->layout, options);
  std::vector<int32_t> started;
  const OpTimes times = RunOps(ops.step(), rules, &started, stop);
  RETURN_IF_ERROR(CheckNotStopped(stop));
  RETURN_IF_ERROR(ops.CheckFinished(times));
  return ops.TimelineOf(times, started);
}

PartTimes TimesOfPart(const StageSimulation& stage,
                      const SimulationOptions& options,
                      std::span<const InstructionId> part, BesidePart beside) {
  return InstructionOps({}, options).RunPart(stage, part, beside);
}

}  // namespace millrace
