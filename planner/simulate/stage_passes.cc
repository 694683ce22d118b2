#include "planner/simulate/stage_passes.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/check.h"
#include "planner/program/op_table.h"

namespace millrace {
namespace {

// Moments of a pass that are closer than this are one.
constexpr double kSameMomentSeconds = 1e-9;

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

}  // namespace

bool IsKept(Lane lane) {
  return lane == Lane::kDataComm || lane == Lane::kSendNext ||
         lane == Lane::kSendPrevious || lane == Lane::kReceivePrevious ||
         lane == Lane::kReceiveNext;
}

struct StagePasses::PassTimes {
  std::array<PartTimes, 3> by_beside;  // By BesidePart.
  std::array<double, 3> end_s;         // The end of the compute lane.
  size_t num_computed = 0;  // The first instructions are the compute lane's.

  const PartTimes& Alone() const { return Of(BesidePart::kNothing); }
  const PartTimes& Of(BesidePart beside) const {
    return by_beside[static_cast<size_t>(beside)];
  }
  double EndOf(BesidePart beside) const {
    return end_s[static_cast<size_t>(beside)];
  }
  double EndAlone() const { return EndOf(BesidePart::kNothing); }
  // Seconds until `time_s` in which the compute lane is busy beside traffic.
  double ComputedUntil(double time_s) const {
    const PartTimes& times = Of(BesidePart::kTraffic);
    double seconds = 0;
    for (size_t i = 0; i < num_computed && times.start_s[i] < time_s; ++i) {
      seconds += std::min(times.end_s[i], time_s) - times.start_s[i];
    }
    return seconds;
  }
};

double StagePasses::Moment::TimeIn(const PartTimes& times) const {
  if (place == kPassStart) return 0;
  return (is_end ? times.end_s : times.start_s)[place];
}

StagePasses::StagePasses(const StageSimulation& stage,
                         const SimulationOptions& options,
                         const std::vector<ChunkPass>& order)
    : stage_(stage),
      program_(*stage.program),
      options_(options),
      pass_of_(program_.instructions.size(), -1),
      place_(program_.instructions.size(), -1),
      computed_place_(program_.instructions.size(), -1),
      first_user_(program_.instructions.size(), -1) {
  Divide(order);
  for (Pass& pass : passes_) pass.times = TimesOf(pass);
  FindFirstUsers();
  FindMeetings();
}

void StagePasses::AddTo(PassOpList* list) {
  for (Pass& pass : passes_) {
    const size_t num_parts = pass.cuts.size();
    for (size_t i = 0; i < num_parts; ++i) {
      const int32_t id = list->Add(
          OpOf(pass, i),
          {.kind = pass.kind,
           .chunk_idx = program_.stage,
           .microbatch_idx = pass.microbatch_idx,
           .bucket_idx = num_parts > 1 ? static_cast<int32_t>(i) : -1});
      if (i == 0) pass.first_op = id;
    }
  }
}

StagePasses::OpBefore StagePasses::OpBeforeKept(InstructionId id) const {
  const auto found = ready_.find(id);
  if (found == ready_.end()) return {};
  const Moment& moment = found->second;
  const Pass& pass = passes_[moment.pass];
  const int32_t num_parts = NumPartsBefore(moment);
  if (moment.pass == 0 && num_parts == 0) return {};
  // The tensor lane's work may end after the pass does.
  const double behind_s =
      moment.TimeIn(pass.times->Alone()) - pass.times->EndAlone();
  return {.op = pass.first_op + num_parts - 1,
          .delay_s = std::max(0.0, behind_s)};
}

std::vector<StagePasses::OpAfter> StagePasses::OpsAfterKept(
    InstructionId id) const {
  std::vector<OpAfter> ops;
  const auto found = needed_.find(id);
  if (found == needed_.end()) return ops;
  for (const Need& need : found->second) {
    const Pass& pass = passes_[need.at.pass];
    ops.push_back({.op = pass.first_op + NumPartsBefore(need.at),
                   .delay_s = need.ahead_s});
  }
  return ops;
}

void StagePasses::AddToPass(InstructionId id, int32_t pass) {
  pass_of_[id] = pass;
  place_[id] = static_cast<int32_t>(passes_[pass].instructions.size());
  passes_[pass].instructions.push_back(id);
}

void StagePasses::Divide(const std::vector<ChunkPass>& order) {
  for (const ChunkPass& pass : order) {
    passes_.push_back({.kind = EventKindOf(pass.kind),
                       .microbatch_idx = pass.microbatch_idx});
  }
  passes_.push_back({.kind = PassEventKind::kOptimizer});
  DivideComputeLane(order);
  DivideTensorLane(order);
  // The host's loads for later passes are there in time.
  for (const InstructionId id : LaneOf(Lane::kHost)) {
    const Instruction& instruction = program_.instructions[id];
    if (instruction.microbatch_idx == passes_[0].microbatch_idx) {
      AddToPass(id, 0);
    }
  }
}

void StagePasses::DivideComputeLane(const std::vector<ChunkPass>& order) {
  const auto optimizer = static_cast<int32_t>(order.size());
  const std::vector<InstructionId>& lane = LaneOf(Lane::kCompute);
  int32_t current = 0;
  for (size_t i = 0; i < lane.size(); ++i) {
    const InstructionId id = lane[i];
    computed_place_[id] = static_cast<int32_t>(i);
    const Instruction& instruction = program_.instructions[id];
    const auto is_of_current = [&] {
      return order[current].microbatch_idx == instruction.microbatch_idx &&
             IsOfKind(order[current].kind, instruction.phase);
    };
    if (instruction.phase == Phase::kOptimizer) {
      current = optimizer;
    } else if (instruction.phase != Phase::kGradientReduce &&
               instruction.microbatch_idx >= 0) {
      while (current < optimizer && !is_of_current()) ++current;
    }
    AddToPass(id, current);
  }
  for (const Pass& pass : passes_) CHECK(!pass.instructions.empty());
}

void StagePasses::DivideTensorLane(const std::vector<ChunkPass>& order) {
  std::map<std::pair<int32_t, ChunkPassKind>, int32_t> known;
  for (size_t i = 0; i < order.size(); ++i) {
    known[{order[i].microbatch_idx, order[i].kind}] = static_cast<int32_t>(i);
  }
  for (const InstructionId id : LaneOf(Lane::kTensorComm)) {
    const Instruction& instruction = program_.instructions[id];
    int32_t pass = instruction.phase == Phase::kOptimizer
                       ? static_cast<int32_t>(order.size())
                       : 0;
    if (instruction.phase == Phase::kGradientReduce) {
      // It follows what computes the gradients.
      for (const InstructionId wait : instruction.waits) {
        pass = std::max(pass, pass_of_[wait]);
      }
    } else {
      for (int i = 0; i < kNumChunkPassKinds; ++i) {
        const auto kind = static_cast<ChunkPassKind>(i);
        const auto found = known.find({instruction.microbatch_idx, kind});
        if (found != known.end() && IsOfKind(kind, instruction.phase)) {
          pass = found->second;
        }
      }
    }
    AddToPass(id, pass);
  }
}

std::shared_ptr<const StagePasses::PassTimes> StagePasses::TimesOf(
    const Pass& pass) {
  std::vector<double> seconds;
  size_t num_computed = 0;
  for (const InstructionId id : pass.instructions) {
    seconds.push_back(stage_.seconds[id]);
    if (computed_place_[id] >= 0) ++num_computed;
  }
  std::shared_ptr<const PassTimes>& known =
      times_[{pass.kind, std::move(seconds)}];
  if (known != nullptr) return known;
  auto times = std::make_shared<PassTimes>();
  times->num_computed = num_computed;
  for (size_t i = 0; i < times->by_beside.size(); ++i) {
    PartTimes& part = times->by_beside[i];
    part = TimesOfPart(stage_, options_, pass.instructions,
                       static_cast<BesidePart>(i));
    times->end_s[i] = part.end_s[num_computed - 1];
  }
  return known = std::move(times);
}

void StagePasses::FindFirstUsers() {
  const auto take_earlier = [&](InstructionId id, InstructionId user) {
    InstructionId& first = first_user_[id];
    if (user >= 0 &&
        (first < 0 || computed_place_[user] < computed_place_[first])) {
      first = user;
    }
  };
  for (const InstructionId id : LaneOf(Lane::kCompute)) {
    for (const InstructionId wait : program_.instructions[id].waits) {
      if (program_.instructions[wait].lane == Lane::kTensorComm) {
        take_earlier(wait, id);
      }
    }
  }
  const std::vector<InstructionId>& tensor = LaneOf(Lane::kTensorComm);
  for (size_t i = tensor.size(); i-- > 1;) {
    take_earlier(tensor[i - 1], first_user_[tensor[i]]);
  }
}

void StagePasses::FindMeetings() {
  for (size_t i = 0; i < program_.instructions.size(); ++i) {
    const auto id = static_cast<InstructionId>(i);
    const Instruction& instruction = program_.instructions[id];
    if (IsKept(instruction.lane)) FindReady(id);
    if (pass_of_[id] < 0) continue;
    for (const InstructionId wait : instruction.waits) {
      if (!IsKept(program_.instructions[wait].lane)) continue;
      const Need need = NeedOf(id);
      passes_[need.at.pass].cuts.push_back(need.at);
      needed_[wait].push_back(need);
    }
  }
  for (Pass& pass : passes_) MergeCuts(&pass);
}

// A kept instruction can start once the last that it waits for has ended.
void StagePasses::FindReady(InstructionId id) {
  InstructionId last = -1;
  const auto when = [&](InstructionId wait) {
    const int32_t pass = pass_of_[wait];
    return std::pair(pass, passes_[pass].times->Alone().end_s[place_[wait]]);
  };
  for (const InstructionId wait : program_.instructions[id].waits) {
    if (pass_of_[wait] < 0) continue;
    if (last < 0 || when(wait) > when(last)) last = wait;
  }
  if (last < 0) return;
  const Moment moment{
      .pass = pass_of_[last], .place = place_[last], .is_end = true};
  passes_[moment.pass].cuts.push_back(moment);
  ready_.emplace(id, moment);
}

// The compute lane goes on while the tensor lane waits for a kept instruction,
// until it needs what the tensor lane does then.
StagePasses::Need StagePasses::NeedOf(InstructionId id) const {
  Need need{.at = {.pass = pass_of_[id], .place = place_[id]}};
  const InstructionId computed = first_user_[id];
  if (computed < 0 || pass_of_[computed] != pass_of_[id]) return need;
  need.at.place = place_[computed];
  const Waits& waits = program_.instructions[computed].waits;
  const std::vector<InstructionId>& in_pass =
      passes_[pass_of_[id]].instructions;
  double seconds = 0;
  for (size_t i = place_[id]; i < in_pass.size(); ++i) {
    if (program_.instructions[in_pass[i]].lane != Lane::kTensorComm) break;
    seconds += stage_.seconds[in_pass[i]];
    if (std::find(waits.begin(), waits.end(), in_pass[i]) != waits.end()) {
      need.ahead_s = seconds;
    }
  }
  return need;
}

void StagePasses::MergeCuts(Pass* pass) const {
  const PartTimes& times = pass->times->Alone();
  std::vector<Moment> cuts = std::move(pass->cuts);
  std::stable_sort(cuts.begin(), cuts.end(),
                   [&](const Moment& a, const Moment& b) {
                     return a.TimeIn(times) < b.TimeIn(times);
                   });
  pass->cuts = {{}};
  const double last_s = pass->times->EndAlone() - kSameMomentSeconds;
  for (const Moment& cut : cuts) {
    const double time_s = cut.TimeIn(times);
    if (time_s > last_s) break;
    const double before_s = pass->cuts.back().TimeIn(times);
    if (time_s >= before_s + kSameMomentSeconds) pass->cuts.push_back(cut);
  }
}

int32_t StagePasses::NumPartsBefore(const Moment& moment) const {
  const Pass& pass = passes_[moment.pass];
  const PartTimes& times = pass.times->Alone();
  const double time_s = moment.TimeIn(times) + kSameMomentSeconds;
  const auto num_parts = static_cast<int32_t>(pass.cuts.size());
  if (time_s > pass.times->EndAlone()) return num_parts;
  int32_t before = 0;
  while (before + 1 < num_parts &&
         pass.cuts[before + 1].TimeIn(times) < time_s) {
    ++before;
  }
  return before;
}

StepOp StagePasses::OpOf(const Pass& pass, size_t part) const {
  // When the part begins and ends.
  const auto span_of = [&](BesidePart beside) {
    const PartTimes& times = pass.times->Of(beside);
    const double end_s = pass.times->EndOf(beside);
    const double from_s = std::min(end_s, pass.cuts[part].TimeIn(times));
    const double to_s =
        part + 1 == pass.cuts.size()
            ? end_s
            : std::min(end_s, pass.cuts[part + 1].TimeIn(times));
    return std::pair(from_s, std::max(from_s, to_s));
  };
  const auto [from_s, to_s] = span_of(BesidePart::kNothing);
  const auto [slow_from_s, slow_to_s] = span_of(BesidePart::kTraffic);
  const auto [wait_from_s, wait_to_s] = span_of(BesidePart::kWaitForPeer);
  const double slow_s = slow_to_s - slow_from_s;
  StepOp op{.seconds = to_s - from_s, .stage = program_.stage};
  if (op.seconds > 0) {
    op.slowdown = static_cast<float>(std::max(1.0, slow_s / op.seconds));
    op.waiting_slowdown = static_cast<float>(
        std::max(1.0, (wait_to_s - wait_from_s) / op.seconds));
  }
  if (slow_s > 0) {
    op.busy_share =
        static_cast<float>((pass.times->ComputedUntil(slow_to_s) -
                            pass.times->ComputedUntil(slow_from_s)) /
                           slow_s);
  }
  SetHolds(pass, from_s, to_s, &op);
  return op;
}

// A kernel that is ready at a random moment finds one that holds every
// processor with the probability of its share of the time, and has to wait for
// half of it in the mean.
void StagePasses::SetHolds(const Pass& pass, double from_s, double to_s,
                           StepOp* op) const {
  const PartTimes& times = pass.times->Alone();
  double squares = 0;
  for (size_t i = 0; i < pass.times->num_computed; ++i) {
    const InstructionId id = pass.instructions[i];
    const double start_s = std::max(from_s, times.start_s[i]);
    const double end_s = std::min(to_s, times.end_s[i]);
    if (end_s <= start_s ||
        !Describe(program_.instructions[id].kind).fills_device) {
      continue;
    }
    if (start_s < from_s + kSameMomentSeconds) {
      op->first_hold_s = static_cast<float>(end_s - start_s);
    }
    squares += (end_s - start_s) * (end_s - start_s);
  }
  if (to_s > from_s) {
    op->mean_hold_s = static_cast<float>(squares / (2 * (to_s - from_s)));
  }
}

}  // namespace millrace
