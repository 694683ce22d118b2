// Workers come, fail and go; who falls silent, agents too. See job_state.h.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/job_state.h"

namespace millrace {
namespace {

// How often people hear who is missing.
constexpr absl::Duration kMissingReportInterval = absl::Seconds(10);
// Three heartbeats of an agent.
constexpr absl::Duration kLeastAgentGap = absl::Milliseconds(600);

// A recovery goes on without a worker that has no rank once so many of its
// processes have died, and without what it has in memory.
constexpr int32_t kMostDeathsWithoutRank = 3;

// An agent that is silent for longer may be cut off. Well below the time after
// which a worker is killed, so that a cut is known for one by then.
absl::Duration LongestAgentGap(const JobStateOptions& options) {
  return std::max(kLeastAgentGap, options.heartbeat_timeout / 2);
}

}  // namespace

JobState::Worker* JobState::Find(const ProcessId& process) {
  const auto found = workers_.find(process.worker);
  if (found == workers_.end() || !found->second.ordered ||
      found->second.incarnation != process.incarnation) {
    return nullptr;
  }
  return &found->second;
}

void JobState::On(const WorkerJoined& event) {
  Worker* worker = Find(event.process);
  if (worker == nullptr) {
    if (phase_ == Phase::kRejoining || phase_ == Phase::kWaitingForAgents) {
      // It is back before its agent; take its word until the agent's list.
      Worker& known = workers_[event.process.worker];
      if (known.incarnation > event.process.incarnation) return;
      known.incarnation = event.process.incarnation;
      known.ordered = true;
      worker = &known;
    } else {
      actions_.emplace_back(KillWorkerProcess{AgentOf(event.process.worker),
                                              event.process,
                                              "a later process has its place"});
      return;
    }
  }
  worker->joined = true;
  worker->heard = now_;
  worker->given = event.generation;
  worker->phase = event.phase;
  switch (phase_) {
    case Phase::kRejoining:
      if (AllAgentsReady()) BecomeComplete();
      break;
    case Phase::kStarting:
      if (event.phase == WorkerPhase::kIdle) {
        worker->cleared_for = generation_;
        worker->told_to_clear = absl::InfiniteFuture();
        BeginIfAllCleared();
      } else {
        TellToClear();  // The first order was lost.
      }
      break;
    case Phase::kProfiling:
    case Phase::kTraining:
      if (!IsActive(event.process.worker)) break;
      if (event.generation != generation_ ||
          event.phase == WorkerPhase::kIdle) {
        Recover(event.process.worker, " lost its connection and its orders");
      } else if (stop_requested_) {
        actions_.emplace_back(TellWorkersToStop{});
      } else {
        if (pauses_) actions_.emplace_back(TellWorkersToPause{});
        EndPauseIfAllStopped();
      }
      break;
    default:
      break;
  }
}

void JobState::On(const WorkerHeard& event) {
  if (Worker* worker = Find(event.process)) worker->heard = now_;
}

void JobState::On(const WorkerCleared& event) {
  Worker* worker = Find(event.process);
  if (worker == nullptr) return;
  worker->joined = true;  // Its session is open, whenever its agent came.
  if (event.generation != generation_) {
    // It does end what it should; the newest order is on its way.
    if (worker->told_to_clear <= now_) worker->told_to_clear = now_;
    return;
  }
  worker->heard = now_;
  worker->told_to_clear = absl::InfiniteFuture();
  worker->cleared_for = generation_;
  worker->phase = WorkerPhase::kIdle;
  BeginIfAllCleared();
}

void JobState::On(const WorkerDead& event) {
  // Agents list the living; the dead must not rise again from an older list.
  for (Agent& agent : agents_) std::erase(agent.live_workers, event.process);
  Worker* worker = Find(event.process);
  if (worker == nullptr) return;
  // Deaths that follow from one that has raised the generation do not count.
  const bool counts =
      phase_ != Phase::kStarting || worker->given == Generation{};
  worker->ordered = false;
  worker->joined = false;
  actions_.emplace_back(Report{.event = "worker_died",
                               .worker = event.process.worker,
                               .detail = event.detail});
  switch (phase_) {
    case Phase::kStarting:
    case Phase::kProfiling:
    case Phase::kTraining:
      if (!IsActive(event.process.worker)) {
        // It may have left state in memory, which its next process reads. A
        // generation has one process of each worker, so it takes the next one.
        if (phase_ == Phase::kStarting) {
          if (event.process.incarnation == ToInt(generation_) &&
              ++deaths_without_rank_ <= kMostDeathsWithoutRank) {
            RaiseGeneration();
            break;
          }
          StartMissing();
        }
        BeginIfAllCleared();
        break;
      }
      RecoverFromDeath(event, counts);
      break;
    case Phase::kRejoining:
      if (AllAgentsReady()) BecomeComplete();
      break;
    default:
      break;  // A plan starts what is missing.
  }
}

void JobState::RecoverFromDeath(const WorkerDead& event, bool counts) {
  // Its peers may have noticed first. The first death in a recovery is the one
  // that they noticed.
  const bool is_of_device =
      !event.ended_with_agent && (counts || !is_device_known_);
  const bool leaves_out =
      is_of_device && LeavesOutDeviceOf(event.process.worker);
  // The death is reported already.
  if (counts && !MayRestart(absl::StrCat(NameOf(event.process.worker), ": ",
                                         event.detail))) {
    return;
  }
  if (leaves_out) {
    Regroup();
  } else {
    RaiseGeneration();
  }
}

void JobState::On(const WorkerRunning& event) {
  if (event.generation != generation_ || phase_ != Phase::kTraining ||
      !IsActive(event.worker)) {
    return;
  }
  workers_[event.worker].phase = WorkerPhase::kRunning;
  if (!event.from_memory) restored_steps_ = event.completed_steps;
  if (!running_.insert(event.worker).second) return;
  if (static_cast<int32_t>(running_.size()) == NumMembers()) {
    has_trained_ = true;
    was_paused_ = false;
    deaths_without_rank_ = 0;
    // The generation before has left more than the one before that.
    if (event.completed_steps > most_restored_) restarts_ = 0;
    most_restored_ = std::max(most_restored_, event.completed_steps);
    actions_.emplace_back(
        Report{.event = "training", .step = event.completed_steps});
    ConsiderGrowth();
  }
}

bool JobState::IsHopeless(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
      return true;  // The next try would end the same way.
    default:
      return false;
  }
}

void JobState::On(const WorkerFailed& event) {
  if (event.generation != generation_ ||
      (phase_ != Phase::kTraining && phase_ != Phase::kProfiling)) {
    return;
  }
  const std::string cause = absl::StrCat(": ", event.status.message());
  if (IsHopeless(event.status)) {
    End(Verdict::kFailed, absl::StrCat(NameOf(event.worker), cause));
  } else if (absl::IsInternal(event.status) &&
             LeavesOutDeviceOf(event.worker)) {
    // Most errors of a device are Internal, and leave its process without it.
    ReportFailed(event.worker, cause);
    Kill(event.worker, "its device is left out");
    if (MayRestart(absl::StrCat(NameOf(event.worker), cause))) Regroup();
  } else {
    Recover(event.worker, cause);
  }
}

void JobState::On(const RanksHang& event) {
  if (event.generation != generation_ || phase_ != Phase::kTraining) return;
  if (event.culprits.empty()) {
    actions_.emplace_back(Report{.event = "generation_failed",
                                 .detail = event.explanation,
                                 .generation = ToInt(generation_)});
    Restart(event.explanation);
    return;
  }
  for (size_t i = 0; i < event.culprits.size(); ++i) {
    Kill(event.culprits[i], absl::StrCat("hangs: ", event.reasons[i]));
  }
}

void JobState::Kill(WorkerIdx worker_idx, const std::string& reason) {
  Worker& worker = workers_[worker_idx];
  if (!worker.ordered || worker.killed || !CanTellAgentOf(worker_idx)) return;
  worker.killed = true;
  actions_.emplace_back(KillWorkerProcess{
      AgentOf(worker_idx), {worker_idx, worker.incarnation}, reason});
}

void JobState::On(const ReplaceWorker& event) {
  if (phase_ == Phase::kTraining && IsActive(event.worker)) {
    Kill(event.worker, event.reason);
  }
}

void JobState::On(const ReplicasDiffer& event) {
  if (event.generation != generation_ || phase_ != Phase::kTraining) return;
  actions_.emplace_back(
      Report{.event = "replicas_differ",
             .step = event.step,
             .worker = event.suspects.empty()
                           ? std::nullopt
                           : std::optional<WorkerIdx>(event.suspects[0]),
             .detail = event.explanation});
  if (!MayRestart(event.explanation)) return;
  for (const WorkerIdx worker : event.suspects) {
    if (event.outvoted)
      Kill(worker, "its parameters differ from its replicas'");
  }
  // At once, so that nothing of this state is committed.
  GiveUpCommitsFor("the replicas of its state differ");
  RaiseGeneration();
}

void JobState::On(const RollBack& event) {
  if (event.generation != generation_ || phase_ != Phase::kTraining) return;
  actions_.emplace_back(Report{.event = "generation_failed",
                               .detail = event.cause,
                               .generation = ToInt(generation_)});
  GiveUpCommitsFor("its steps are trained again");
  Restart(event.cause);
}

void JobState::On(const TrainingHopeless& event) {
  if (event.generation != generation_ || phase_ != Phase::kTraining) return;
  End(Verdict::kFailed, event.reason);
}

// Silence. --------------------------------------------------------------------

void JobState::On(const Tick&) {
  ForgiveOwnStall();
  last_tick_ = now_;
  ReportMissingAgents();
  CheckSilence();
  CheckDevices();
}

void JobState::ForgiveOwnStall() {
  // If this process itself stood still (a stopped machine), what others sent
  // meanwhile may not have been handled yet.
  const absl::Duration gap = now_ - last_tick_;
  if (gap < options_.heartbeat_timeout / 2) return;
  for (Agent& agent : agents_) {
    agent.heard = now_;
    if (agent.disconnected <= now_) agent.disconnected = now_;
  }
  for (auto& [worker_idx, worker] : workers_) {
    worker.heard = now_;
    if (worker.told_to_clear <= now_) worker.told_to_clear = now_;
  }
  phase_began_ = std::max(phase_began_, now_ - options_.join_timeout / 2);
}

void JobState::ReportMissingAgents() {
  if (phase_ != Phase::kWaitingForAgents && phase_ != Phase::kRejoining) return;
  if (now_ - last_missing_report_ < kMissingReportInterval) return;
  last_missing_report_ = now_;
  std::vector<std::string> missing;
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    if (!agents_[i].joined && agents_[i].takes_part)
      missing.push_back(NameOfAgent(i));
  }
  if (missing.empty()) return;
  actions_.emplace_back(Report{.event = "agents_missing",
                               .detail = absl::StrJoin(missing, ", ")});
}

bool JobState::IsLastMissing(int32_t agent_idx) const {
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    if (i != agent_idx && agents_[i].takes_part && !agents_[i].joined) {
      return false;
    }
  }
  return agent_idx == options_.taken_over_from;
}

std::string JobState::ReasonToLeaveOut(int32_t agent_idx) const {
  const Agent& agent = agents_[agent_idx];
  if (!agent.joined) {
    const absl::Duration limit =
        !options_.taken_over_from.has_value() || phase_ != Phase::kRejoining
            ? options_.join_timeout
        : IsLastMissing(agent_idx) ? options_.return_timeout
                                   : options_.host_timeout;
    if (now_ - phase_began_ <= limit) return "";
    return absl::StrCat("has not come back within ",
                        absl::FormatDuration(limit));
  }
  if (now_ - agent.heard > options_.host_timeout) {
    return absl::StrCat("has been silent for ",
                        absl::FormatDuration(options_.host_timeout));
  }
  if (now_ - agent.disconnected > options_.return_timeout) {
    return absl::StrCat("has lost its connection and not come back within ",
                        absl::FormatDuration(options_.return_timeout));
  }
  return "";
}

void JobState::Forget(int32_t agent_idx) {
  Agent& agent = agents_[agent_idx];
  agent.takes_part = agent.joined = agent.data_ready = false;
  agent.live_workers.clear();
  agent.disconnected = absl::InfiniteFuture();
  ForgetWorkers(agent_idx);
}

void JobState::ForgetWorkers(int32_t agent_idx) {
  for (auto& [worker_idx, worker] : workers_) {
    if (AgentOf(worker_idx) != agent_idx) continue;
    worker.ordered = worker.joined = worker.killed = false;
    worker.told_to_clear = absl::InfiniteFuture();
  }
}

void JobState::Lose(int32_t agent_idx, const std::string& reason) {
  const bool has_member = std::any_of(
      members_.begin(), members_.end(),
      [&](WorkerIdx worker) { return AgentOf(worker) == agent_idx; });
  Forget(agent_idx);
  is_device_known_ = true;  // The host failed, not a device.
  const std::string cause = absl::StrCat(NameOfAgent(agent_idx), " ", reason);
  actions_.emplace_back(Report{.event = "host_lost", .detail = cause});
  actions_.emplace_back(LeaveOut{agent_idx});
  if (phase_ == Phase::kPlanning) {
    plan_is_late_ = true;
    actions_.emplace_back(AbandonPlan{});
    return;
  }
  if (!has_member) {
    // It or its workers may have been waited for.
    if (phase_ == Phase::kRejoining && AllAgentsReady()) BecomeComplete();
    BeginIfAllCleared();
    return;
  }
  if (!MayRestart(cause)) return;
  AdoptLiveWorkers();
  Regroup();
}

void JobState::CheckAgents() {
  // Before there is a plan, all agents that were started are wanted.
  const bool may_lose = !members_.empty() && purpose_ == Purpose::kTrain &&
                        phase_ != Phase::kWaitingForAgents &&
                        agents_[options_.own_agent].joined;
  // Agents of a job that has a generation are there already: they come back to
  // a restarted coordinator by themselves, or never.
  const absl::Duration time_to_join =
      phase_ == Phase::kWaitingForAgents && members_.empty()
          ? std::max(options_.join_timeout, options_.first_join_timeout)
          : options_.join_timeout;
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    Agent& agent = agents_[i];
    if (!agent.takes_part) {
      if (agent.joined && now_ - agent.heard > options_.host_timeout) Forget(i);
      continue;
    }
    if (i != options_.own_agent && may_lose) {
      const std::string reason = ReasonToLeaveOut(i);
      if (!reason.empty()) Lose(i, reason);
      if (phase_ == Phase::kEnded) return;
      continue;
    }
    const absl::Time since = agent.joined ? agent.heard : phase_began_;
    const absl::Duration timeout =
        agent.joined ? options_.join_timeout : time_to_join;
    if (now_ - since <= timeout) continue;
    const std::string limit = absl::FormatDuration(timeout);
    std::string reason =
        agent.joined
            ? absl::StrCat(NameOfAgent(i), " has been silent for ", limit)
            : absl::StrCat(NameOfAgent(i), " has not joined within ", limit,
                           "; see what it says itself, and whether its host "
                           "reaches this one");
    if (!refusal_.empty()) {
      absl::StrAppend(&reason,
                      ". The other hosts cannot go on without it: ", refusal_);
    }
    End(Verdict::kFailed, reason);
    return;
  }
}

void JobState::CheckSilence() {
  CheckAgents();
  if (phase_ == Phase::kEnded) return;
  for (auto& [worker_idx, worker] : workers_) {
    if (!worker.ordered || worker.killed) continue;
    std::string reason = ReasonToKill(worker_idx, worker);
    if (reason.empty()) continue;
    worker.killed = true;
    actions_.emplace_back(KillWorkerProcess{AgentOf(worker_idx),
                                            {worker_idx, worker.incarnation},
                                            std::move(reason)});
  }
}

bool JobState::CanTellAgentOf(WorkerIdx worker_idx) const {
  const int32_t agent_idx = AgentOf(worker_idx);
  return agent_idx >= 0 && agents_[agent_idx].joined &&
         now_ - agents_[agent_idx].heard <= LongestAgentGap(options_);
}

void JobState::HearAgent(int32_t agent_idx) {
  Agent& agent = agents_[agent_idx];
  const bool was_silent = now_ - agent.heard > LongestAgentGap(options_);
  agent.heard = now_;
  if (!was_silent) return;
  // The host or its network stood still, so its workers could not be heard.
  for (auto& [worker_idx, worker] : workers_) {
    if (AgentOf(worker_idx) == agent_idx) worker.heard = now_;
  }
}

std::string JobState::ReasonToKill(WorkerIdx worker_idx,
                                   const Worker& worker) const {
  const bool trains =
      phase_ == Phase::kTraining && worker.phase == WorkerPhase::kRunning;
  const absl::Duration limit = !worker.joined ? options_.join_timeout
                               : trains       ? options_.heartbeat_timeout
                                        : std::max(options_.heartbeat_timeout,
                                                   options_.starting_timeout);
  const bool may_kill = !worker.joined || CanTellAgentOf(worker_idx);
  if (may_kill && now_ - worker.heard > limit) {
    return absl::StrCat("silent for ", absl::FormatDuration(limit));
  }
  const absl::Duration most_to_clear = options_.clear_timeout + step_time_;
  if (worker.joined && now_ - worker.told_to_clear > most_to_clear) {
    return absl::StrCat("hangs in ending generation ", ToInt(worker.given),
                        ", which it was told to ",
                        absl::FormatDuration(absl::Trunc(
                            most_to_clear, absl::Milliseconds(100))),
                        " ago");
  }
  return "";
}

}  // namespace millrace
