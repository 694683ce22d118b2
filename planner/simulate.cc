#include "planner/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <queue>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "planner/host_sharing.h"
#include "planner/noise.h"

namespace millrace {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();

struct InstructionRef {
  int32_t stage;
  InstructionId id;
};

// Instructions that start as they arrive and end together, `seconds` after the
// last arrival: the two ends of a transfer, or a world collective's stages.
struct Meeting {
  std::vector<InstructionRef> members;
  size_t num_arrived = 0;
  double seconds = 0;   // The longest of its members'.
  double spread_s = 0;  // Likewise.
};

// Communication under way: all its members have arrived.
struct Flow {
  std::vector<InstructionRef> members;
  double remaining_s;  // Of members that do not compute.
  bool by_copy_engines = false;
  double slowdown = 1;  // While advancing.
};

struct StageState {
  const Program* program;
  std::array<size_t, kNumLanes> next{};  // Position in each lane.
  std::array<bool, kNumLanes> busy{};
  std::vector<bool> done;
  std::vector<int32_t> meeting;  // By instruction; -1: none.
  std::vector<TimelineEvent> events;
  std::vector<int32_t> event_index;  // By instruction.
  // The compute lane's work still to do, in seconds of a rank alone.
  InstructionId computing = -1;
  double remaining_s = 0;
  int32_t num_flows = 0;   // By NCCL, that this stage is a member of,
  int32_t num_copies = 0;  // and by copy engines.
  // Squares of the seconds of ops since the last collective on each lane.
  std::array<double, kNumLanes> squared_s{};
  // Communication that waits for `computing` to make room.
  std::vector<InstructionRef> crowded_out;
  // What copy engines have done but for the kernel behind it, likewise.
  std::vector<InstructionRef> waits_to_end;
  // Ranks of each stage on the host of this stage's representative.
  std::vector<int32_t> neighbours;
};

bool IsWorldCollective(const Instruction& instruction) {
  return IsCollective(instruction.kind) &&
         std::get<CollectiveAttributes>(instruction.attributes).group ==
             Group::kWorld;
}

// Whether the kernel holds every multiprocessor of a GPU until it ends.
bool FillsTheDevice(const Instruction& instruction) {
  return instruction.kind == OpKind::kGemm ||
         instruction.kind == OpKind::kAttentionForward ||
         instruction.kind == OpKind::kAttentionBackward;
}

class Simulator {
 public:
  Simulator(std::span<const StageSimulation> stages,
            const SimulationOptions& options)
      : inputs_(stages), options_(options) {}

  absl::StatusOr<Timeline> Run() {
    RETURN_IF_ERROR(CheckInput());
    SetUp();
    RETURN_IF_ERROR(PairTransfers());
    RETURN_IF_ERROR(JoinWorldCollectives());
    for (int32_t stage = 0; stage < num_stages(); ++stage) StartReady(stage);
    while (Advance()) {
    }
    RETURN_IF_ERROR(CheckFinished());
    return TakeTimeline();
  }

 private:
  // When something other than computation ends.
  struct TimedEnd {
    double time_s;
    int64_t sequence;  // Breaks ties in the order of starting.
    InstructionRef ref;
    friend bool operator>(const TimedEnd& a, const TimedEnd& b) {
      return std::pair(a.time_s, a.sequence) > std::pair(b.time_s, b.sequence);
    }
  };

  int32_t num_stages() const { return static_cast<int32_t>(inputs_.size()); }
  const Instruction& InstructionOf(InstructionRef ref) const {
    return inputs_[ref.stage].program->instructions[ref.id];
  }
  double SecondsOf(InstructionRef ref) const {
    return inputs_[ref.stage].seconds[ref.id];
  }
  bool IsByCopyEngines(InstructionRef ref) const {
    const std::vector<bool>& is = inputs_[ref.stage].by_copy_engines;
    return !is.empty() && is[ref.id];
  }
  // Whether a kernel beside what the stage computes has to wait for its end.
  bool IsCrowded(const StageState& state) const {
    return options_.overlap.waits && state.computing >= 0 &&
           FillsTheDevice(state.program->instructions[state.computing]);
  }

  absl::Status CheckInput() const {
    for (int32_t i = 0; i < num_stages(); ++i) {
      const Program& program = *inputs_[i].program;
      if (program.stage != i || program.layout.pipeline != num_stages() ||
          inputs_[i].seconds.size() != program.instructions.size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "simulation input ", i, " of ", num_stages(), " is stage ",
            program.stage, " of ", program.layout.pipeline, " with ",
            inputs_[i].seconds.size(), " times for ",
            program.instructions.size(), " instructions"));
      }
    }
    if (num_stages() > 0 && options_.ranks_per_host >= 1) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("cannot simulate ", num_stages(), " stages with ",
                     options_.ranks_per_host, " ranks a host"));
  }

  void SetUp() {
    const Layout& layout = inputs_[0].program->layout;
    for (int32_t i = 0; i < num_stages(); ++i) {
      const size_t size = inputs_[i].program->instructions.size();
      StageState state{.program = inputs_[i].program};
      state.done.assign(size, false);
      state.meeting.assign(size, -1);
      state.event_index.assign(size, -1);
      state.events.reserve(size);
      state.neighbours.assign(num_stages(), 0);
      const int32_t host =
          ToInt(RankOf(layout, {.pipeline = i})) / options_.ranks_per_host;
      const int32_t begin = host * options_.ranks_per_host;
      const int32_t end =
          std::min(begin + options_.ranks_per_host, layout.num_ranks());
      for (int32_t rank = begin; rank < end; ++rank) {
        ++state.neighbours[CoordinatesOf(layout, Rank{rank}).pipeline];
      }
      states_.push_back(std::move(state));
    }
  }

  void Join(std::vector<InstructionRef> members) {
    Meeting meeting{.members = std::move(members)};
    for (const InstructionRef& ref : meeting.members) {
      meeting.seconds = std::max(meeting.seconds, SecondsOf(ref));
      states_[ref.stage].meeting[ref.id] =
          static_cast<int32_t>(meetings_.size());
    }
    meetings_.push_back(std::move(meeting));
  }

  // Lanes of transfers keep one order at both ends: equal positions meet.
  absl::Status PairTransfers() {
    const std::pair<Lane, Lane> ends[] = {
        {Lane::kSendNext, Lane::kReceivePrevious},
        {Lane::kReceiveNext, Lane::kSendPrevious}};
    for (int32_t stage = 0; stage + 1 < num_stages(); ++stage) {
      for (const auto& [lane, next_lane] : ends) {
        const auto& here =
            inputs_[stage].program->lanes[static_cast<int>(lane)];
        const auto& there =
            inputs_[stage + 1].program->lanes[static_cast<int>(next_lane)];
        if (here.size() != there.size()) {
          return absl::InternalError(absl::StrCat(
              "stage ", stage, " has ", here.size(), " transfers on ",
              LaneName(lane), ", stage ", stage + 1, " has ", there.size(),
              " on ", LaneName(next_lane)));
        }
        for (size_t i = 0; i < here.size(); ++i) {
          Join({{stage, here[i]}, {stage + 1, there[i]}});
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status JoinWorldCollectives() {
    std::vector<std::vector<InstructionRef>> by_order;
    for (int32_t stage = 0; stage < num_stages(); ++stage) {
      const Program& program = *inputs_[stage].program;
      size_t count = 0;
      for (InstructionId id :
           program.lanes[static_cast<int>(Lane::kDataComm)]) {
        if (!IsWorldCollective(program.instructions[id])) continue;
        if (count == by_order.size()) by_order.emplace_back();
        by_order[count++].push_back({stage, id});
      }
    }
    for (std::vector<InstructionRef>& members : by_order) {
      if (members.size() != inputs_.size()) {
        return absl::InternalError(absl::StrCat("a world collective has ",
                                                members.size(), " of ",
                                                inputs_.size(), " stages"));
      }
      Join(std::move(members));
    }
    return absl::OkStatus();
  }

  bool IsReady(const StageState& state, InstructionId id) const {
    for (InstructionId wait : state.program->instructions[id].waits) {
      if (!state.done[wait]) return false;
    }
    return true;
  }

  void StartReady(int32_t stage) {
    StageState& state = states_[stage];
    for (int lane = 0; lane < kNumLanes; ++lane) {
      const std::vector<InstructionId>& order = state.program->lanes[lane];
      if (state.busy[lane] || state.next[lane] == order.size()) continue;
      const InstructionId id = order[state.next[lane]];
      if (!IsReady(state, id)) continue;
      state.busy[lane] = true;
      Start({stage, id});
    }
  }

  void Start(InstructionRef ref) {
    StageState& state = states_[ref.stage];
    state.event_index[ref.id] = static_cast<int32_t>(state.events.size());
    state.events.push_back(
        {.instruction = ref.id, .start_s = now_s_, .end_s = kForever});
    if (InstructionOf(ref).lane == Lane::kCompute) {
      state.computing = ref.id;
      state.remaining_s = SecondsOf(ref);
    } else if (InstructionOf(ref).lane == Lane::kHost) {
      EndAt(now_s_ + SecondsOf(ref), ref);
    } else if (!IsByCopyEngines(ref) && IsCrowded(state)) {
      state.crowded_out.push_back(ref);
    } else {
      Arrive(ref);
    }
  }

  void Arrive(InstructionRef ref) {
    const int32_t meeting_idx = states_[ref.stage].meeting[ref.id];
    const double spread_s = TakeArrivalSpread(ref);
    if (meeting_idx < 0) {
      Communicate({ref}, SecondsOf(ref) + spread_s);
      return;
    }
    Meeting& meeting = meetings_[meeting_idx];
    meeting.spread_s = std::max(meeting.spread_s, spread_s);
    if (++meeting.num_arrived < meeting.members.size()) return;
    Communicate(meeting.members, meeting.seconds + meeting.spread_s);
  }

  // By how much the last of the ranks that the representative stands for comes
  // after the mean one: ops whose times scatter independently add up like their
  // squares, and of n normal values the largest is expected at this quantile
  // (Blom, 1958).
  double TakeArrivalSpread(InstructionRef ref) {
    const Instruction& instruction = InstructionOf(ref);
    if (options_.arrival_spread == 0 || !IsCollective(instruction.kind)) {
      return 0;
    }
    const Layout& layout = inputs_[ref.stage].program->layout;
    const Group group =
        std::get<CollectiveAttributes>(instruction.attributes).group;
    const double num_ranks = group == Group::kWorld
                                 ? layout.num_ranks() / layout.pipeline
                                 : GroupSize(layout, group);
    double& squared_s =
        states_[ref.stage].squared_s[static_cast<int>(instruction.lane)];
    return options_.arrival_spread * std::sqrt(std::exchange(squared_s, 0)) *
           NormalQuantile((num_ranks - 0.375) / (num_ranks + 0.25));
  }

  void Communicate(const std::vector<InstructionRef>& members, double seconds) {
    const bool by_copy_engines = IsByCopyEngines(members.front());
    // Then the end is known, to the last bit.
    const bool is_steady = !by_copy_engines && !SharesCores() &&
                           options_.overlap == OverlapFactors{};
    for (const InstructionRef& member : members) {
      StageState& state = states_[member.stage];
      if (is_steady) {
        EndAt(now_s_ + seconds, member);
      } else {
        ++(by_copy_engines ? state.num_copies : state.num_flows);
      }
    }
    if (!is_steady) flows_.push_back({members, seconds, by_copy_engines});
  }

  void EndAt(double time_s, InstructionRef ref) {
    ends_.push({time_s, num_timed_++, ref});
  }

  void Finish(InstructionRef ref) {
    StageState& state = states_[ref.stage];
    const int lane = static_cast<int>(InstructionOf(ref).lane);
    TimelineEvent& event = state.events[state.event_index[ref.id]];
    event.end_s = now_s_;
    if (InstructionOf(ref).lane == Lane::kCompute) {
      const double seconds = now_s_ - event.start_s;
      for (double& squared_s : state.squared_s) squared_s += seconds * seconds;
    }
    state.done[ref.id] = true;
    state.busy[lane] = false;
    ++state.next[lane];
    ++num_done_;
  }

  // Seconds that pass while a stage does one second of its work, and while a
  // flow does.
  double Slowdown(const StageState& state) const {
    double slowdown = 1;
    if (state.num_flows > 0) slowdown = options_.overlap.compute;
    if (state.num_copies > 0) {
      slowdown = std::max(slowdown, options_.copy_engine_overlap.compute);
    }
    return HostSlowdown(state) * slowdown;
  }
  double Slowdown(const Flow& flow) const {
    double host = 1, own = 1;
    for (const InstructionRef& member : flow.members) {
      const StageState& state = states_[member.stage];
      if (SharesCores()) {
        host = std::max(host, CommunicationSlowdown(options_.compute_contention,
                                                    NumBusy(state)));
      }
      if (state.computing >= 0) {
        own = (flow.by_copy_engines ? options_.copy_engine_overlap
                                    : options_.overlap)
                  .communication;
      }
    }
    return host * own;
  }
  bool SharesCores() const {
    return !options_.compute_contention.empty() &&
           millrace::SharesCores(options_.compute_contention);
  }
  double HostSlowdown(const StageState& state) const {
    if (options_.compute_contention.empty()) return 1;
    return SharingSlowdown(options_.compute_contention, NumBusy(state));
  }
  // Ranks on the stage's host that compute, and where these share cores, those
  // that communicate.
  int32_t NumBusy(const StageState& state) const {
    int32_t num_busy = 0;
    for (int32_t i = 0; i < num_stages(); ++i) {
      if (states_[i].computing >= 0) num_busy += state.neighbours[i];
    }
    if (!SharesCores()) return num_busy;
    for (const Flow& flow : flows_) {
      for (const InstructionRef& member : flow.members) {
        num_busy += state.neighbours[member.stage];
      }
    }
    return num_busy;
  }

  // Goes to the next end of an instruction; false if none is under way.
  bool Advance() {
    double next_s = ends_.empty() ? kForever : ends_.top().time_s;
    int32_t first_to_finish = -1;
    std::vector<double>& slowdowns = slowdowns_;
    slowdowns.assign(num_stages(), 1);
    for (int32_t i = 0; i < num_stages(); ++i) {
      const StageState& state = states_[i];
      if (state.computing < 0) continue;
      slowdowns[i] = Slowdown(state);
      const double end_s = now_s_ + state.remaining_s * slowdowns[i];
      if (end_s < next_s) {
        next_s = end_s;
        first_to_finish = i;
      }
    }
    const Flow* first_flow = nullptr;
    for (Flow& flow : flows_) {
      flow.slowdown = Slowdown(flow);
      const double end_s = now_s_ + flow.remaining_s * flow.slowdown;
      if (end_s < next_s) {
        next_s = end_s;
        first_to_finish = -1;
        first_flow = &flow;
      }
    }
    if (next_s == kForever) return false;

    const double elapsed_s = next_s - now_s_;
    now_s_ = next_s;
    std::vector<int32_t> touched;
    std::vector<InstructionRef> arriving;
    for (int32_t i = 0; i < num_stages(); ++i) {
      StageState& state = states_[i];
      if (state.computing < 0) continue;
      state.remaining_s -= elapsed_s / slowdowns[i];
      // Rounding must not leave a remainder too small to move the clock.
      if (i != first_to_finish &&
          now_s_ + state.remaining_s * slowdowns[i] > now_s_) {
        continue;
      }
      Finish({i, std::exchange(state.computing, -1)});
      touched.push_back(i);
      std::vector<InstructionRef>& let_in = state.crowded_out;
      arriving.insert(arriving.end(), let_in.begin(), let_in.end());
      let_in.clear();
      for (const InstructionRef& ref : state.waits_to_end) Finish(ref);
      state.waits_to_end.clear();
    }
    FinishFlows(elapsed_s, first_flow, touched);
    while (!ends_.empty() && ends_.top().time_s <= now_s_) {
      const InstructionRef ref = ends_.top().ref;
      ends_.pop();
      Finish(ref);
      touched.push_back(ref.stage);
    }
    for (const InstructionRef& ref : arriving) Arrive(ref);
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (int32_t stage : touched) StartReady(stage);
    return true;
  }

  // Likewise for communication.
  void FinishFlows(double elapsed_s, const Flow* first_flow,
                   std::vector<int32_t>& touched) {
    std::vector<Flow> left;
    for (Flow& flow : flows_) {
      flow.remaining_s -= elapsed_s / flow.slowdown;
      if (&flow != first_flow &&
          now_s_ + flow.remaining_s * flow.slowdown > now_s_) {
        left.push_back(std::move(flow));
        continue;
      }
      for (const InstructionRef& member : flow.members) {
        StageState& state = states_[member.stage];
        --(flow.by_copy_engines ? state.num_copies : state.num_flows);
        if (flow.by_copy_engines && IsCollective(InstructionOf(member).kind) &&
            IsCrowded(state)) {
          state.waits_to_end.push_back(member);
          continue;
        }
        Finish(member);
        touched.push_back(member.stage);
      }
    }
    flows_ = std::move(left);
  }

  absl::Status CheckFinished() const {
    size_t num_instructions = 0;
    for (const StageState& state : states_)
      num_instructions += state.done.size();
    if (num_done_ == num_instructions) return absl::OkStatus();
    std::vector<std::string> stuck;
    for (int32_t i = 0; i < num_stages(); ++i) {
      const StageState& state = states_[i];
      for (int lane = 0; lane < kNumLanes; ++lane) {
        const std::vector<InstructionId>& order = state.program->lanes[lane];
        if (state.next[lane] == order.size()) continue;
        const InstructionId id = order[state.next[lane]];
        stuck.push_back(
            absl::StrCat("stage ", i, " ", LaneName(static_cast<Lane>(lane)),
                         " at instruction ", id, " (",
                         state.program->instructions[id].name, ", micro-batch ",
                         state.program->instructions[id].microbatch_idx, ")"));
      }
    }
    return absl::InternalError(absl::StrCat(
        "the Programs deadlock: ", num_done_, " of ", num_instructions,
        " instructions ran; stuck: ", absl::StrJoin(stuck, "; ")));
  }

  Timeline TakeTimeline() {
    Timeline timeline;
    timeline.step_time_s = now_s_;
    const Layout& layout = inputs_[0].program->layout;
    for (int32_t i = 0; i < num_stages(); ++i) {
      timeline.ranks.push_back({.rank = RankOf(layout, {.pipeline = i}),
                                .stage = i,
                                .events = std::move(states_[i].events)});
    }
    return timeline;
  }

  const std::span<const StageSimulation> inputs_;
  const SimulationOptions& options_;
  std::vector<StageState> states_;
  std::vector<Meeting> meetings_;
  std::priority_queue<TimedEnd, std::vector<TimedEnd>, std::greater<>> ends_;
  std::vector<Flow> flows_;        // In the order of starting.
  std::vector<double> slowdowns_;  // By stage, while advancing.
  int64_t num_timed_ = 0;
  size_t num_done_ = 0;
  double now_s_ = 0;
};

}  // namespace

absl::StatusOr<Timeline> Simulate(std::span<const StageSimulation> stages,
                                  const SimulationOptions& options) {
  return Simulator(stages, options).Run();
}

}  // namespace millrace
