#include "planner/simulate/simulate_instructions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "planner/cost/host_sharing.h"
#include "planner/profile/seeded_noise.h"
#include "planner/program/collective_matches.h"
#include "planner/simulate/simulated_stage.h"

namespace millrace {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
// By which a kernel is longer at most because another that waits for its peer
// keeps some cores: about a wave of a product's tiles
// (docs/results/2026-11-22-small-models-h200.md).
constexpr double kLongestWaveSeconds = 16e-6;

// Ends `seconds` after the last arrival.
struct LaneMeeting {
  StageMeeting members;
  size_t num_arrived = 0;
  double seconds = 0;            // The longest of its members'.
  double spread_s = 0;           // Likewise.
  std::vector<int32_t> waiting;  // Stages whose cores it keeps already.
};

// Communication under way: all its members have arrived.
struct Flow {
  std::vector<StageInstruction> members;
  double remaining_s;  // Of members that do not compute.
  bool by_copy_engines = false;
  double slowdown = 1;  // While advancing.
};

class Simulator {
 public:
  Simulator(std::span<const StageSimulation> stages,
            const SimulationOptions& options)
      : inputs_(stages), options_(options) {}

  absl::StatusOr<Timeline> Run() {
    RETURN_IF_ERROR(CheckInput());
    SetUp();
    RETURN_IF_ERROR(SetUpMeetings());
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
    StageInstruction ref;
    friend bool operator>(const TimedEnd& a, const TimedEnd& b) {
      return std::pair(a.time_s, a.sequence) > std::pair(b.time_s, b.sequence);
    }
  };

  int32_t num_stages() const { return static_cast<int32_t>(inputs_.size()); }
  const Instruction& InstructionOf(StageInstruction ref) const {
    return inputs_[ref.stage].program->instructions[ref.id];
  }
  double SecondsOf(StageInstruction ref) const {
    return inputs_[ref.stage].seconds[ref.id];
  }
  bool IsByCopyEngines(StageInstruction ref) const {
    const std::vector<bool>& is = inputs_[ref.stage].by_copy_engines;
    return !is.empty() && is[ref.id];
  }
  // Whether a kernel beside what the stage computes has to wait for its end.
  bool IsCrowded(const SimulatedStage& stage) const {
    return options_.overlap.waits && stage.FillsTheDevice();
  }

  // By which a computation is longer because communication that waits for its
  // other end has taken cores already.
  double BesideWaitingSeconds(const SimulatedStage& stage,
                              StageInstruction ref) const {
    if (!options_.overlap.waits || stage.num_waiting == 0) return 0;
    return std::min(kLongestWaveSeconds,
                    (options_.overlap.compute - 1) * SecondsOf(ref));
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
      SimulatedStage stage(inputs_[i].program);
      stage.neighbours = RanksBeside(layout, RankOf(layout, {.pipeline = i}),
                                     options_.ranks_per_host);
      stages_.push_back(std::move(stage));
      meeting_of_.emplace_back(inputs_[i].program->instructions.size(), -1);
    }
  }

  absl::Status SetUpMeetings() {
    std::vector<const Program*> programs;
    for (const StageSimulation& input : inputs_) {
      programs.push_back(input.program);
    }
    ASSIGN_OR_RETURN(std::vector<StageMeeting> all, StageMeetingsOf(programs));
    for (StageMeeting& members : all) {
      LaneMeeting meeting{.members = std::move(members)};
      for (const StageInstruction& ref : meeting.members) {
        meeting.seconds = std::max(meeting.seconds, SecondsOf(ref));
        meeting_of_[ref.stage][ref.id] = static_cast<int32_t>(meetings_.size());
      }
      meetings_.push_back(std::move(meeting));
    }
    return absl::OkStatus();
  }

  void StartReady(int32_t stage) {
    for (int lane = 0; lane < kNumLanes; ++lane) {
      const InstructionId id =
          stages_[stage].NextReady(static_cast<Lane>(lane));
      if (id >= 0) Start({stage, id});
    }
  }

  void Start(StageInstruction ref) {
    SimulatedStage& stage = stages_[ref.stage];
    stage.Begin(ref.id, now_s_);
    if (InstructionOf(ref).lane == Lane::kCompute) {
      stage.computing = ref.id;
      stage.remaining_s = SecondsOf(ref) + BesideWaitingSeconds(stage, ref);
    } else if (InstructionOf(ref).lane == Lane::kHost) {
      EndAt(now_s_ + SecondsOf(ref), ref);
    } else if (!IsByCopyEngines(ref) && IsCrowded(stage)) {
      stage.crowded_out.push_back(ref);
    } else {
      Arrive(ref);
    }
  }

  void Arrive(StageInstruction ref) {
    const int32_t meeting_idx = meeting_of_[ref.stage][ref.id];
    const double spread_s = TakeArrivalSpread(ref);
    if (meeting_idx < 0) {
      Communicate({ref}, SecondsOf(ref) + spread_s);
      return;
    }
    LaneMeeting& meeting = meetings_[meeting_idx];
    meeting.spread_s = std::max(meeting.spread_s, spread_s);
    if (++meeting.num_arrived < meeting.members.size()) {
      if (!IsByCopyEngines(ref)) {
        ++stages_[ref.stage].num_waiting;
        meeting.waiting.push_back(ref.stage);
      }
      return;
    }
    for (const int32_t stage : meeting.waiting) --stages_[stage].num_waiting;
    Communicate(meeting.members, meeting.seconds + meeting.spread_s);
  }

  // By how much the last of the ranks that the representative stands for comes
  // after the mean one: ops whose times scatter independently add up like their
  // squares.
  double TakeArrivalSpread(StageInstruction ref) {
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
    const double squared_s =
        stages_[ref.stage].TakeSquaredSeconds(instruction.lane);
    return options_.arrival_spread * std::sqrt(squared_s) *
           LargestOfNormals(num_ranks);
  }

  void Communicate(const std::vector<StageInstruction>& members,
                   double seconds) {
    const bool by_copy_engines = IsByCopyEngines(members.front());
    // Then the end is known, to the last bit.
    const bool is_steady = !by_copy_engines && !SharesCores() &&
                           options_.overlap == OverlapFactors{};
    for (const StageInstruction& member : members) {
      SimulatedStage& stage = stages_[member.stage];
      if (is_steady) {
        EndAt(now_s_ + seconds, member);
      } else {
        ++(by_copy_engines ? stage.num_copies : stage.num_flows);
      }
    }
    if (!is_steady) flows_.push_back({members, seconds, by_copy_engines});
  }

  void EndAt(double time_s, StageInstruction ref) {
    ends_.push({time_s, num_timed_++, ref});
  }

  void Finish(StageInstruction ref) {
    stages_[ref.stage].End(ref.id, now_s_);
    ++num_done_;
  }

  // Seconds that pass while a stage does one second of its work, and while a
  // flow does.
  double Slowdown(const SimulatedStage& stage) const {
    double slowdown = 1;
    if (stage.num_flows > 0) slowdown = options_.overlap.compute;
    if (stage.num_copies > 0) {
      slowdown = std::max(slowdown, options_.copy_engine_overlap.compute);
    }
    return HostSlowdown(stage) * slowdown;
  }
  double Slowdown(const Flow& flow) const {
    double host = 1, own = 1;
    for (const StageInstruction& member : flow.members) {
      const SimulatedStage& stage = stages_[member.stage];
      if (SharesCores()) {
        host = std::max(host, CommunicationSlowdown(options_.compute_contention,
                                                    NumBusy(stage)));
      }
      if (stage.computing >= 0) {
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
  double HostSlowdown(const SimulatedStage& stage) const {
    if (options_.compute_contention.empty()) return 1;
    return SharingSlowdown(options_.compute_contention, NumBusy(stage));
  }
  // Ranks on the stage's host that compute, and where these share cores, those
  // that communicate.
  int32_t NumBusy(const SimulatedStage& stage) const {
    int32_t num_busy = 0;
    for (int32_t i = 0; i < num_stages(); ++i) {
      if (stages_[i].computing >= 0) num_busy += stage.neighbours[i];
    }
    if (!SharesCores()) return num_busy;
    for (const Flow& flow : flows_) {
      for (const StageInstruction& member : flow.members) {
        num_busy += stage.neighbours[member.stage];
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
      const SimulatedStage& stage = stages_[i];
      if (stage.computing < 0) continue;
      slowdowns[i] = Slowdown(stage);
      const double end_s = now_s_ + stage.remaining_s * slowdowns[i];
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
    std::vector<StageInstruction> arriving;
    for (int32_t i = 0; i < num_stages(); ++i) {
      SimulatedStage& stage = stages_[i];
      if (stage.computing < 0) continue;
      stage.remaining_s -= elapsed_s / slowdowns[i];
      // Rounding must not leave a remainder too small to move the clock.
      if (i != first_to_finish &&
          now_s_ + stage.remaining_s * slowdowns[i] > now_s_) {
        continue;
      }
      Finish({i, std::exchange(stage.computing, -1)});
      touched.push_back(i);
      std::vector<StageInstruction>& let_in = stage.crowded_out;
      arriving.insert(arriving.end(), let_in.begin(), let_in.end());
      let_in.clear();
      for (const StageInstruction& ref : stage.waits_to_end) Finish(ref);
      stage.waits_to_end.clear();
    }
    FinishFlows(elapsed_s, first_flow, touched);
    while (!ends_.empty() && ends_.top().time_s <= now_s_) {
      const StageInstruction ref = ends_.top().ref;
      ends_.pop();
      Finish(ref);
      touched.push_back(ref.stage);
    }
    for (const StageInstruction& ref : arriving) Arrive(ref);
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
      for (const StageInstruction& member : flow.members) {
        SimulatedStage& stage = stages_[member.stage];
        --(flow.by_copy_engines ? stage.num_copies : stage.num_flows);
        if (flow.by_copy_engines && IsCollective(InstructionOf(member).kind) &&
            IsCrowded(stage)) {
          stage.waits_to_end.push_back(member);
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
    for (const SimulatedStage& stage : stages_) {
      num_instructions += stage.num_instructions();
    }
    if (num_done_ == num_instructions) return absl::OkStatus();
    std::vector<std::string> stuck;
    for (const SimulatedStage& stage : stages_) {
      for (std::string& line : stage.DescribeStuck()) {
        stuck.push_back(std::move(line));
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
                                .events = stages_[i].TakeEvents()});
    }
    return timeline;
  }

  const std::span<const StageSimulation> inputs_;
  const SimulationOptions& options_;
  std::vector<SimulatedStage> stages_;
  std::vector<LaneMeeting> meetings_;
  // By stage and instruction; -1: none.
  std::vector<std::vector<int32_t>> meeting_of_;
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
