#include "planner/simulate/event_loop.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

#include "planner/cost/host_sharing.h"

namespace millrace {
namespace {

// The most by which a kernel gets longer because another one, which waits for
// its peer, keeps some cores: about a wave of a product's tiles
// (docs/results/2026-11-22-small-models-h200.md).
constexpr double kLongestWaveSeconds = 16e-6;

class EventLoop {
 public:
  EventLoop(const StepOps& step, const LoopRules& rules,
            std::vector<int32_t>* started)
      : step_(step),
        rules_(rules),
        started_(started),
        shares_cores_(!rules.compute_contention.empty() &&
                      SharesCores(rules.compute_contention)),
        stages_(step.num_stages),
        slots_(step.num_stages),
        meetings_(step.meetings.size()),
        num_waits_(step.ops.size()),
        follower_begin_(step.ops.size() + 1, 0) {
    times_.start_s.assign(step.ops.size(), 0);
    times_.end_s.assign(step.ops.size(), OpTimes::kNever);
    SetUpFollowers();
    for (size_t i = 0; i < step.meetings.size(); ++i) {
      for (const int32_t member : step.meetings[i]) {
        meetings_[i].seconds =
            std::max(meetings_[i].seconds, step.ops[member].seconds);
      }
    }
  }

  OpTimes Run(const std::stop_token& stop) {
    for (size_t i = 0; i < step_.ops.size(); ++i) {
      const auto op = static_cast<int32_t>(i);
      if (num_waits_[i] == 0) {
        ready_.push_back(op);
      } else if (num_waits_[i] == 1 && step_.ops[i].carries >= 0) {
        AddWaiting(step_.ops[i].receiver, 1);
      }
    }
    StartReady();
    while (!stop.stop_requested() && Advance()) {
    }
    times_.step_time_s = now_s_;
    return std::move(times_);
  }

 private:
  struct Stage {
    int32_t computing = -1;
    std::vector<int32_t> flows;  // Slots of those that it is a member of:
    int32_t num_flows = 0;       // by kernels,
    int32_t num_copies = 0;      // and by copy engines.
    int32_t num_waiting = 0;  // By kernels, started here and not at all ends.
    // Communication that waits for `computing` to make room.
    std::vector<int32_t> crowded_out;
    // Copies that are done but for their last kernel, which waits for room too.
    std::vector<int32_t> waits_to_end;
    // By lane: squares of the seconds of what was computed since the lane's
    // last collective, added up.
    std::array<double, kNumLanes> squared_s{};
    bool is_dirty = false;  // Something began or ended.
  };
  struct Meeting {
    size_t num_arrived = 0;
    double seconds = 0;  // The longest of its members'.
    double spread_s = 0;
  };
  // An op under way.
  struct Slot {
    int32_t op = -1;         // The first member if it communicates.
    double since_s = 0;      // When `slowdown` began;
    double remaining_s = 0;  // what was left then, if nothing slowed it.
    double slowdown = 0;     // 0: unknown until all that start now have.
    int32_t version = 0;     // Its end's version.
    bool is_held = false;    // It waits for processors, and begins thereafter.
  };
  // Outdated if the slot has a later version.
  struct End {
    double time_s;
    int32_t slot;
    int32_t version;
    friend bool operator>(const End& a, const End& b) {
      return std::pair(a.time_s, a.slot) > std::pair(b.time_s, b.slot);
    }
  };

  void SetUpFollowers() {
    for (const int32_t wait : step_.waits) ++follower_begin_[wait + 1];
    for (size_t i = 0; i < step_.ops.size(); ++i) {
      follower_begin_[i + 1] += follower_begin_[i];
    }
    followers_.resize(step_.waits.size());
    std::vector<int32_t> next(follower_begin_.begin(),
                              follower_begin_.end() - 1);
    for (size_t i = 0; i < step_.ops.size(); ++i) {
      for (const int32_t wait : step_.WaitsOf(i)) {
        followers_[next[wait]++] = static_cast<int32_t>(i);
      }
      num_waits_[i] = static_cast<int32_t>(step_.WaitsOf(i).size());
    }
  }

  std::span<const int32_t> MembersOf(const int32_t& op) const {
    const int32_t meeting = step_.ops[op].meeting;
    return meeting < 0 ? std::span(&op, 1) : std::span(step_.meetings[meeting]);
  }
  template <typename Visitor>
  void ForStagesOf(int32_t op, Visitor visit) const {
    for (const int32_t member : MembersOf(op)) {
      visit(step_.ops[member].stage);
      if (step_.ops[member].receiver >= 0) visit(step_.ops[member].receiver);
    }
  }

  // Whether a kernel beside what the stage computes has to wait for its end.
  bool IsCrowded(const Stage& stage) const {
    return rules_.overlap.waits && stage.computing >= 0 &&
           step_.ops[stage.computing].fills_device;
  }

  // The seconds by which a computation gets longer because communication that
  // waits for its other end has taken cores already.
  double BesideWaitingSeconds(const Stage& stage, const StepOp& op) const {
    if (!rules_.overlap.waits || stage.num_waiting == 0 ||
        op.waiting_slowdown > 0) {
      return 0;
    }
    return std::min(kLongestWaveSeconds,
                    (rules_.overlap.compute - 1) * op.seconds);
  }

  // How long a kernel that starts now has to wait for those of a computation of
  // many.
  double HoldSeconds(const Stage& stage) const {
    if (!rules_.overlap.waits || stage.computing < 0) return 0;
    const StepOp& op = step_.ops[stage.computing];
    return times_.start_s[stage.computing] == now_s_ ? op.first_hold_s
                                                     : op.mean_hold_s;
  }

  // Computations first, as communication that starts with one has to wait.
  void StartReady() {
    std::sort(ready_.begin(), ready_.end(), [&](int32_t a, int32_t b) {
      const auto key = [&](int32_t op) {
        return std::pair(step_.ops[op].lane != Lane::kCompute, op);
      };
      return key(a) < key(b);
    });
    for (const int32_t op : ready_) Start(op);
    ready_.clear();
  }

  void Start(int32_t id) {
    const StepOp& op = step_.ops[id];
    Stage& stage = stages_[op.stage];
    times_.start_s[id] = now_s_;
    if (started_ != nullptr) started_->push_back(id);
    switch (op.resource) {
      case OpResource::kCompute:
        stage.computing = id;
        Begin(op.stage, id, op.seconds + BesideWaitingSeconds(stage, op));
        MakeDirty(op.stage);
        break;
      case OpResource::kHost:
        Communicate(id, op.seconds);
        break;
      case OpResource::kNetwork:
        if (IsCrowded(stage)) {
          stage.crowded_out.push_back(id);
          break;
        }
        if (const double hold_s = HoldSeconds(stage); hold_s > 0) {
          SetSlowdown(Occupy(id, hold_s, /*is_held=*/true), 1);
          break;
        }
        [[fallthrough]];
      case OpResource::kCopyEngines:
        Arrive(id);
    }
  }

  void Arrive(int32_t id) {
    const StepOp& op = step_.ops[id];
    const double spread_s = TakeArrivalSpread(op);
    if (op.meeting < 0) {
      Communicate(id, op.seconds + spread_s);
      return;
    }
    const std::vector<int32_t>& members = step_.meetings[op.meeting];
    Meeting& meeting = meetings_[op.meeting];
    meeting.spread_s = std::max(meeting.spread_s, spread_s);
    const auto takes_cores = [&](int32_t member) {
      return step_.ops[member].resource == OpResource::kNetwork;
    };
    if (++meeting.num_arrived < members.size()) {
      if (takes_cores(id)) ++stages_[op.stage].num_waiting;
      return;
    }
    for (const int32_t member : members) {
      if (member == id || !takes_cores(member)) continue;
      --stages_[step_.ops[member].stage].num_waiting;
    }
    Communicate(members.front(), meeting.seconds + meeting.spread_s);
  }

  // By how much the last of the ranks that the representative stands for comes
  // after the mean one: ops whose times scatter independently add up like their
  // squares.
  double TakeArrivalSpread(const StepOp& op) {
    if (rules_.arrival_spread == 0 || op.latecomers == 0) return 0;
    const double squared_s = std::exchange(
        stages_[op.stage].squared_s[static_cast<int>(op.lane)], 0);
    return rules_.arrival_spread * std::sqrt(squared_s) * op.latecomers;
  }

  // Host ops as well: communication of no stage.
  void Communicate(int32_t op, double seconds) {
    const int32_t slot = Occupy(op, seconds);
    if (step_.ops[op].resource == OpResource::kHost) {
      SetSlowdown(slot, 1);
      return;
    }
    ForStagesOf(op, [&](int32_t idx) {
      Stage& stage = stages_[idx];
      ++(IsByCopyEngines(op) ? stage.num_copies : stage.num_flows);
      stage.flows.push_back(slot);
      MakeDirty(idx);
    });
  }

  int32_t Occupy(int32_t op, double seconds, bool is_held = false) {
    if (free_slots_.empty()) {
      free_slots_.push_back(static_cast<int32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const int32_t slot = free_slots_.back();
    free_slots_.pop_back();
    Begin(slot, op, seconds);
    slots_[slot].is_held = is_held;
    return slot;
  }

  void Begin(int32_t slot, int32_t op, double seconds) {
    slots_[slot] = {.op = op,
                    .since_s = now_s_,
                    .remaining_s = seconds,
                    .version = slots_[slot].version};
  }

  void SetSlowdown(int32_t idx, double slowdown) {
    Slot& slot = slots_[idx];
    if (slowdown == slot.slowdown) return;
    if (slot.slowdown > 0) {
      slot.remaining_s = std::max(
          0.0, slot.remaining_s - (now_s_ - slot.since_s) / slot.slowdown);
    }
    slot.since_s = now_s_;
    slot.slowdown = slowdown;
    ends_.push({now_s_ + slot.remaining_s * slowdown, idx, ++slot.version});
  }

  bool IsByCopyEngines(int32_t op) const {
    return step_.ops[op].resource == OpResource::kCopyEngines;
  }
  void AddWaiting(int32_t idx, int32_t number) {
    stages_[idx].num_waiting += number;
    MakeDirty(idx);
  }
  // `ended` is one of the ops that the transfer waits for, and not all have.
  void WaitForPeer(const StepOp& transfer, int32_t ended, int32_t num_left) {
    const bool has_result = times_.end_s[transfer.carries] >= 0;
    if (ended == transfer.carries) {
      AddWaiting(transfer.stage, 1);
    } else if (!has_result && num_left == 1) {
      AddWaiting(transfer.receiver, 1);
    }
  }
  // Ends what WaitForPeer() began when the last op ends: the transfer starts.
  void MeetPeer(const StepOp& transfer, int32_t ended) {
    AddWaiting(ended == transfer.carries ? transfer.receiver : transfer.stage,
               -1);
  }
  void MakeDirty(int32_t stage) {
    if (std::exchange(stages_[stage].is_dirty, true)) return;
    dirty_.push_back(stage);
  }

  void Finish(int32_t id) {
    times_.end_s[id] = now_s_;
    const StepOp& op = step_.ops[id];
    if (rules_.arrival_spread != 0 && op.lane == Lane::kCompute) {
      const double seconds = now_s_ - times_.start_s[id];
      for (double& squared_s : stages_[op.stage].squared_s) {
        squared_s += seconds * seconds;
      }
    }
    for (int32_t i = follower_begin_[id]; i < follower_begin_[id + 1]; ++i) {
      const int32_t follower = followers_[i];
      const StepOp& next = step_.ops[follower];
      if (--num_waits_[follower] == 0) ready_.push_back(follower);
      if (next.carries < 0) continue;
      if (num_waits_[follower] == 0) {
        MeetPeer(next, id);
      } else {
        WaitForPeer(next, id, num_waits_[follower]);
      }
    }
  }

  // Seconds that pass while a stage does one second of its work, and while a
  // flow does.
  double StageSlowdown(int32_t idx) const {
    const Stage& stage = stages_[idx];
    double slowdown = 1;
    if (stage.num_flows > 0) {
      const double own = step_.ops[stage.computing].slowdown;
      slowdown = own > 0 ? own : rules_.overlap.compute;
    }
    if (stage.num_waiting > 0) {
      slowdown *= std::max(1.0F, step_.ops[stage.computing].waiting_slowdown);
    }
    if (stage.num_copies > 0) {
      slowdown = std::max(slowdown, rules_.copy_engine_overlap.compute);
    }
    if (rules_.compute_contention.empty()) return slowdown;
    return SharingSlowdown(rules_.compute_contention, NumBusy(idx)) * slowdown;
  }
  double FlowSlowdown(int32_t op) const {
    double host = 1, own = 1;
    ForStagesOf(op, [&](int32_t stage) {
      if (shares_cores_) {
        host = std::max(host, CommunicationSlowdown(rules_.compute_contention,
                                                    NumBusy(stage)));
      }
      if (stages_[stage].computing < 0) return;
      const double factor =
          (IsByCopyEngines(op) ? rules_.copy_engine_overlap : rules_.overlap)
              .communication;
      const double share = step_.ops[stages_[stage].computing].busy_share;
      // Speeds, not times, have a mean over the time of a pass.
      own = std::max(
          own, share == 1 ? factor : factor / (share + factor * (1 - share)));
    });
    return host * own;
  }
  // Ranks on the stage's host that compute, and where these share cores, those
  // that communicate.
  int32_t NumBusy(int32_t stage) const {
    const std::vector<int32_t>& neighbours = rules_.neighbours[stage];
    int32_t num_busy = 0;
    for (int32_t i = 0; i < step_.num_stages; ++i) {
      if (stages_[i].computing >= 0) num_busy += neighbours[i];
    }
    if (!shares_cores_) return num_busy;
    for (size_t i = step_.num_stages; i < slots_.size(); ++i) {
      const int32_t op = slots_[i].op;
      if (op < 0 || step_.ops[op].resource == OpResource::kHost) continue;
      ForStagesOf(op, [&](int32_t stage) { num_busy += neighbours[stage]; });
    }
    return num_busy;
  }

  void UpdateSlowdowns() {
    const bool all = !rules_.compute_contention.empty();
    for (int32_t i = 0; all && i < step_.num_stages; ++i) MakeDirty(i);
    for (const int32_t idx : dirty_) {
      Stage& stage = stages_[idx];
      stage.is_dirty = false;
      if (stage.computing >= 0) SetSlowdown(idx, StageSlowdown(idx));
      for (const int32_t slot : stage.flows) {
        SetSlowdown(slot, FlowSlowdown(slots_[slot].op));
      }
    }
    dirty_.clear();
  }

  // Goes to the next end of an op; false if none is under way.
  bool Advance() {
    UpdateSlowdowns();
    DropOutdated();
    if (ends_.empty()) return false;
    now_s_ = ends_.top().time_s;
    for (; !ends_.empty() && ends_.top().time_s == now_s_; DropOutdated()) {
      const int32_t slot = ends_.top().slot;
      ends_.pop();
      ++slots_[slot].version;
      const int32_t op = std::exchange(slots_[slot].op, -1);
      if (slot < step_.num_stages) {
        FinishComputing(slot, op);
      } else {
        FinishFlow(slot, op);
      }
    }
    for (const int32_t op : arriving_) Arrive(op);
    arriving_.clear();
    StartReady();
    return true;
  }

  void DropOutdated() {
    while (!ends_.empty() &&
           ends_.top().version != slots_[ends_.top().slot].version) {
      ends_.pop();
    }
  }

  void FinishComputing(int32_t idx, int32_t op) {
    Stage& stage = stages_[idx];
    stage.computing = -1;
    Finish(op);
    MakeDirty(idx);
    arriving_.insert(arriving_.end(), stage.crowded_out.begin(),
                     stage.crowded_out.end());
    stage.crowded_out.clear();
    for (const int32_t op : stage.waits_to_end) Finish(op);
    stage.waits_to_end.clear();
  }

  void FinishFlow(int32_t slot, int32_t flow) {
    free_slots_.push_back(slot);
    if (std::exchange(slots_[slot].is_held, false)) {
      arriving_.push_back(flow);
      return;
    }
    if (step_.ops[flow].resource == OpResource::kHost) {
      Finish(flow);
      return;
    }
    ForStagesOf(flow, [&](int32_t idx) {
      Stage& stage = stages_[idx];
      --(IsByCopyEngines(flow) ? stage.num_copies : stage.num_flows);
      std::erase(stage.flows, slot);
      MakeDirty(idx);
    });
    for (const int32_t member : MembersOf(flow)) {
      const StepOp& op = step_.ops[member];
      if (op.ends_by_kernel && IsCrowded(stages_[op.stage])) {
        stages_[op.stage].waits_to_end.push_back(member);
      } else {
        Finish(member);
      }
    }
  }

  const StepOps& step_;
  const LoopRules& rules_;
  std::vector<int32_t>* const started_;
  const bool shares_cores_;
  std::vector<Stage> stages_;
  // The first slots are those of what each stage computes, by stage. Slots of
  // communication follow.
  std::vector<Slot> slots_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::vector<int32_t> free_slots_;
  std::vector<int32_t> dirty_;  // Stages.
  std::vector<Meeting> meetings_;
  std::vector<int32_t> num_waits_;  // By op: waits that have not ended.
  std::vector<int32_t> follower_begin_;
  std::vector<int32_t> followers_;
  std::vector<int32_t> ready_;  // Ops whose waits have all ended.
  // Ops that what ended this instant lets start.
  std::vector<int32_t> arriving_;
  OpTimes times_;
  double now_s_ = 0;
};

}  // namespace

OpTimes RunOps(const StepOps& ops, const LoopRules& rules,
               std::vector<int32_t>* started, const std::stop_token& stop) {
  return EventLoop(ops, rules, started).Run(stop);
}

}  // namespace millrace
