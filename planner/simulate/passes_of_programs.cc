#include "planner/simulate/passes_of_programs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/pipeline/layout_order.h"
#include "planner/pipeline/pass_order.h"
#include "planner/program/op_table.h"

namespace millrace {
namespace {

bool IsTransferLane(Lane lane) {
  return lane == Lane::kSendNext || lane == Lane::kReceivePrevious ||
         lane == Lane::kSendPrevious || lane == Lane::kReceiveNext;
}

// Gathers and reductions of the data axis.
bool IsTraffic(const Instruction& instruction) {
  return instruction.lane == Lane::kDataComm &&
         instruction.phase != Phase::kOptimizer;
}

bool IsOfKind(ChunkPassKind kind, Phase phase) {
  const bool is_weight_gradient =
      phase == Phase::kWeightGradient || phase == Phase::kGradientReduce;
  switch (kind) {
    case ChunkPassKind::kForward:
      return phase == Phase::kForward;
    case ChunkPassKind::kBackward:
      return phase != Phase::kForward;
    case ChunkPassKind::kInputGradient:
      return phase != Phase::kForward && !is_weight_gradient;
    case ChunkPassKind::kWeightGradient:
      return is_weight_gradient;
  }
  return false;
}

// Costs of the passes of one stage, from its instructions.
class StagePasses {
 public:
  StagePasses(const StageSimulation& stage, const SimulationOptions& options)
      : stage_(stage),
        program_(*stage.program),
        options_(options),
        place_(program_.instructions.size(), -1) {
    const auto& lane = program_.lanes[static_cast<size_t>(Lane::kCompute)];
    for (size_t i = 0; i < lane.size(); ++i) {
      place_[lane[i]] = static_cast<int32_t>(i);
    }
    FindNeeds();
  }

  // Seconds of the mean pass of the kind. One in the middle stands for all but
  // the first and the last.
  double Seconds(ChunkPassKind kind) const {
    const int32_t count = program_.layout.num_microbatches;
    double sum = TimeOf(kind, 0).seconds;
    if (count > 1) sum += TimeOf(kind, count - 1).seconds;
    if (count > 2) sum += (count - 2) * TimeOf(kind, count / 2).seconds;
    return sum / count;
  }

  // How the passes of the kind go on beside traffic.
  void FillOverlap(ChunkPassKind kind, KindParts* parts) const {
    const int32_t microbatch = program_.layout.num_microbatches / 2;
    const PartTime alone = TimeOf(kind, microbatch);
    const PartTime beside = TimeOf(kind, microbatch, true);
    if (alone.seconds <= 0) return;
    parts->slowdown = beside.seconds / alone.seconds;
    parts->busy_share = std::min(1.0, beside.computing_s / beside.seconds);
  }

  // The traffic that the passes of the kind meet on other lanes, and where.
  std::vector<PassPart> Parts(ChunkPassKind kind, bool gathers_each,
                              bool reduces_each) const {
    const int32_t count = program_.layout.num_microbatches;
    // Seconds of traffic by share of the pass.
    std::map<double, double> gathers, reductions;
    AddGathers(PassOf(kind, gathers_each ? count / 2 : 0), &gathers);
    AddReductions(PassOf(kind, reduces_each ? count / 2 : count - 1),
                  &reductions);
    const HandOver hand_over = HandOverOf(PassOf(kind, count / 2));
    const double takes_over = TakesOverAt(PassOf(kind, count / 2));
    std::vector<double> cuts = {0, takes_over, hand_over.share, 1};
    for (const auto& [share, seconds] : gathers) cuts.push_back(share);
    for (const auto& [share, seconds] : reductions) cuts.push_back(share);
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<PassPart> parts;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      PassPart part{.share = cuts[i + 1] - cuts[i],
                    .takes_over = cuts[i] == takes_over,
                    .hands_over = cuts[i + 1] == hand_over.share};
      if (part.hands_over) part.delay_s = hand_over.delay_s;
      if (gathers.contains(cuts[i])) part.gather_s = gathers[cuts[i]];
      if (reductions.contains(cuts[i + 1])) {
        part.reduction_s = reductions[cuts[i + 1]];
      }
      parts.push_back(part);
    }
    return parts;
  }

  double OptimizerSeconds() const {
    return TimeOfPart(stage_, options_,
                      [](const Instruction& instruction) {
                        return instruction.microbatch_idx < 0 &&
                               !IsTraffic(instruction) &&
                               instruction.phase != Phase::kForward;
                      })
        .seconds;
  }

 private:
  // The instructions of one pass on the compute lane, and when each ends, as a
  // share of the pass.
  struct Pass {
    std::vector<InstructionId> ids;
    std::vector<double> end_share;
  };

  // Finds where on the compute lane what is gathered and received is first
  // needed. Gathers are in order: what waits for one waits for those before.
  void FindNeeds() {
    std::vector<int32_t> first(program_.instructions.size(),
                               std::numeric_limits<int32_t>::max());
    // Instructions are in an order in which none waits for a later one.
    for (size_t id = program_.instructions.size(); id-- > 0;) {
      const int32_t place = place_[id] >= 0 ? place_[id] : first[id];
      for (const InstructionId wait : program_.instructions[id].waits) {
        first[wait] = std::min(first[wait], place);
      }
    }
    for (const Lane from : {Lane::kReceivePrevious, Lane::kReceiveNext}) {
      for (const InstructionId id : program_.lanes[static_cast<size_t>(from)]) {
        takes_over_at_.push_back(first[id]);
      }
    }
    const auto& lane = program_.lanes[static_cast<size_t>(Lane::kDataComm)];
    int32_t needed_at = std::numeric_limits<int32_t>::max();
    for (auto id = lane.rbegin(); id != lane.rend(); ++id) {
      if (program_.instructions[*id].phase != Phase::kParameterGather) continue;
      needed_at = std::min(needed_at, first[*id]);
      needed_at_.emplace_back(*id, needed_at);
    }
  }

  PartTime TimeOf(ChunkPassKind kind, int32_t microbatch,
                  bool beside_traffic = false) const {
    return TimeOfPart(
        stage_, options_,
        [&](const Instruction& instruction) {
          return instruction.microbatch_idx == microbatch &&
                 !IsTransferLane(instruction.lane) &&
                 instruction.lane != Lane::kDataComm &&
                 IsOfKind(kind, instruction.phase);
        },
        beside_traffic);
  }

  Pass PassOf(ChunkPassKind kind, int32_t microbatch) const {
    Pass pass;
    double seconds = 0;
    for (const InstructionId id :
         program_.lanes[static_cast<size_t>(Lane::kCompute)]) {
      const Instruction& instruction = program_.instructions[id];
      if (instruction.microbatch_idx != microbatch ||
          !IsOfKind(kind, instruction.phase)) {
        continue;
      }
      seconds += stage_.seconds[id];
      pass.ids.push_back(id);
      pass.end_share.push_back(seconds);
    }
    for (double& end : pass.end_share) end /= seconds;
    if (!pass.ids.empty()) pass.end_share.back() = 1;
    return pass;
  }

  // Gathers that a pass waits for, by when it does.
  void AddGathers(const Pass& pass, std::map<double, double>* gathers) const {
    for (const auto& [id, place] : needed_at_) {
      const double begins = BeginOf(place, pass);
      if (begins < 1) (*gathers)[begins] += stage_.seconds[id];
    }
  }

  // When the pass needs what it receives; 0 if it receives nothing.
  double TakesOverAt(const Pass& pass) const {
    for (const int32_t place : takes_over_at_) {
      const double begins = BeginOf(place, pass);
      if (begins < 1) return begins;
    }
    return 0;
  }

  void AddReductions(const Pass& pass,
                     std::map<double, double>* reductions) const {
    if (pass.ids.empty()) return;
    int32_t after = -1;
    for (const InstructionId id :
         program_.lanes[static_cast<size_t>(Lane::kDataComm)]) {
      const Instruction& instruction = program_.instructions[id];
      if (!IsTraffic(instruction) ||
          instruction.phase != Phase::kGradientReduce) {
        continue;
      }
      after = std::max(after, LastComputed(id));
      const double ready = EndOf(after, pass);
      if (ready == 0) continue;
      const double begins =
          IsCrowdedOut(id, after) ? EndOf(after + 1, pass) : 0;
      (*reductions)[std::max(ready, begins)] += stage_.seconds[id];
    }
  }

  // When what the pass is for can leave, as a share of the pass (1 where
  // nothing leaves), and how long it then waits for processors.
  struct HandOver {
    double share = 1;
    double delay_s = 0;
  };
  HandOver HandOverOf(const Pass& pass) const {
    for (const Lane lane : {Lane::kSendNext, Lane::kSendPrevious}) {
      for (const InstructionId id : program_.lanes[static_cast<size_t>(lane)]) {
        const int32_t after = LastComputed(id);
        const double ready = EndOf(after, pass);
        if (ready == 0) continue;
        if (!IsCrowdedOut(id, after)) return {.share = ready};
        const double begins = EndOf(after + 1, pass);
        if (begins > 0) return {.share = begins};
        return {.share = ready, .delay_s = stage_.seconds[Computed(after + 1)]};
      }
    }
    return {};
  }

  InstructionId Computed(int32_t place) const {
    return program_.lanes[static_cast<size_t>(Lane::kCompute)][place];
  }
  // Whether communication that is ready when the instruction at this place ends
  // has to wait for the next one, which takes all processors at once.
  bool IsCrowdedOut(InstructionId id, int32_t place) const {
    const auto& lane = program_.lanes[static_cast<size_t>(Lane::kCompute)];
    if (!options_.overlap.waits ||
        (!stage_.by_copy_engines.empty() && stage_.by_copy_engines[id]) ||
        place + 1 >= static_cast<int32_t>(lane.size())) {
      return false;
    }
    const Instruction& next = program_.instructions[lane[place + 1]];
    const Waits& waits = program_.instructions[id].waits;
    return Describe(next.kind).fills_device &&
           std::none_of(next.waits.begin(), next.waits.end(),
                        [&](InstructionId wait) {
                          return program_.instructions[wait].lane ==
                                 Lane::kTensorComm;
                        }) &&
           std::any_of(waits.begin(), waits.end(), [&](InstructionId wait) {
             return place_[wait] == place;
           });
  }

  // The place on the compute lane of the last instruction that this one waits
  // for; -1: none.
  int32_t LastComputed(InstructionId id) const {
    int32_t last = -1;
    for (const InstructionId wait : program_.instructions[id].waits) {
      last =
          std::max(last, place_[wait] >= 0 ? place_[wait] : LastComputed(wait));
    }
    return last;
  }
  // When the instruction at this place begins; 1: it is not of the pass.
  double BeginOf(int32_t place, const Pass& pass) const {
    for (size_t i = 0; i < pass.ids.size(); ++i) {
      if (place_[pass.ids[i]] == place)
        return i == 0 ? 0 : pass.end_share[i - 1];
    }
    return 1;
  }
  // When the instruction at this place ends; 0: it is not of the pass.
  double EndOf(int32_t place, const Pass& pass) const {
    for (size_t i = 0; i < pass.ids.size(); ++i) {
      if (place_[pass.ids[i]] == place) return pass.end_share[i];
    }
    return 0;
  }

  const StageSimulation& stage_;
  const Program& program_;
  const SimulationOptions& options_;
  std::vector<int32_t> place_;  // On the compute lane, by instruction.
  // Gathers, and the place of the first that waits for each.
  std::vector<std::pair<InstructionId, int32_t>> needed_at_;
  std::vector<int32_t> takes_over_at_;  // Likewise of what is received.
};

ChunkCosts CostsOf(const StagePasses& passes, bool are_apart) {
  ChunkCosts costs{
      .forward_s = passes.Seconds(ChunkPassKind::kForward),
      .weight_gradient_s = passes.Seconds(ChunkPassKind::kWeightGradient)};
  costs.input_gradient_s =
      are_apart
          ? passes.Seconds(ChunkPassKind::kInputGradient)
          : passes.Seconds(ChunkPassKind::kBackward) - costs.weight_gradient_s;
  return costs;
}

}  // namespace

absl::StatusOr<ClusterStep> StepOfPrograms(
    std::span<const StageSimulation> stages, const SimulationOptions& options) {
  const Layout& layout = stages[0].program->layout;
  ClusterStep step{.costs = {.num_stages = layout.pipeline,
                             .num_microbatches = layout.num_microbatches,
                             .stage_of_chunk = {},
                             .chunks = {}},
                   .order = {},
                   .ends = {},
                   .num_replicas = layout.data,
                   .ranks_per_pass = layout.tensor};
  for (int32_t i = 0; i < layout.pipeline; ++i) {
    const StageSimulation& stage = stages[i];
    const StagePasses passes(stage, options);
    step.costs.stage_of_chunk.push_back(i);
    const bool are_apart =
        layout.schedule != Schedule::kOneForwardOneBackward && i > 0;
    step.costs.chunks.push_back(CostsOf(passes, are_apart));
    step.ends.push_back({.optimizer_s = passes.OptimizerSeconds()});
    ChunkParts& parts = step.parts.emplace_back();
    parts.gathers_each = layout.shards_parameters();
    parts.reduces_each = layout.shards_gradients();
    for (int i = 0; i < kNumChunkPassKinds; ++i) {
      const auto kind = static_cast<ChunkPassKind>(i);
      passes.FillOverlap(kind, &parts.by_kind[i]);
      parts.by_kind[i].parts =
          passes.Parts(kind, parts.gathers_each, parts.reduces_each);
    }
    const Program& program = *stage.program;
    for (size_t id = 0; id < program.instructions.size(); ++id) {
      if (!IsTransferLane(program.instructions[id].lane)) continue;
      step.costs.transfer_s =
          std::max(step.costs.transfer_s, stage.seconds[id]);
    }
  }
  if (layout.schedule == Schedule::kListScheduled) {
    ASSIGN_OR_RETURN(step.order, ListedOrder(layout));
  } else {
    ASSIGN_OR_RETURN(step.order, OrderOf(layout.schedule, step.costs));
  }
  return step;
}

}  // namespace millrace
