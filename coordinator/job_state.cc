#include "coordinator/job_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace millrace {

JobState::JobState(const JobStateOptions& options,
                   const RecoveredJob& recovered, absl::Time now)
    : options_(options),
      now_(now),
      phase_(ToInt(recovered.generation) > 0 ? Phase::kRejoining
                                             : Phase::kWaitingForAgents),
      generation_(recovered.generation),
      recovered_generation_(recovered.generation),
      members_(recovered.members),
      step_time_(recovered.step_time),
      committed_step_(recovered.committed_step),
      phase_began_(now),
      last_tick_(now),
      last_missing_report_(now),
      agents_(options.num_agents),
      failing_(options.leave_out_time) {
  CHECK(options.num_agents > 0);
  const size_t num_known = std::min(agents_.size(), options.hosts.size());
  for (size_t i = 0; i < num_known; ++i) agents_[i].host = options.hosts[i];
  if (members_.empty()) return;
  CHECK(recovered.devices_by_agent.size() == agents_.size());
  for (size_t i = 0; i < agents_.size(); ++i) {
    agents_[i].num_devices = recovered.devices_by_agent[i];
    agents_[i].takes_part = static_cast<int32_t>(i) == options.own_agent;
  }
  // Their times begin anew.
  failing_.LeaveOut(recovered.left_out, now + options.leave_out_time);
  const auto note = [this](WorkerIdx worker) {
    CHECK(AgentOf(worker) >= 0);
    agents_[AgentOf(worker)].takes_part = true;
    // It has had a process, which may have left state in memory (StartMissing).
    workers_[worker].incarnation = 1;
  };
  std::for_each(members_.begin(), members_.end(), note);
  std::for_each(recovered.left_out.begin(), recovered.left_out.end(), note);
}

std::vector<JobAction> JobState::Handle(const JobEvent& event, absl::Time now) {
  CHECK(now >= now_);
  now_ = now;
  if (phase_ == Phase::kEnded) return {};
  std::visit([this](const auto& specific) { On(specific); }, event);
  return std::exchange(actions_, {});
}

// Agents. ---------------------------------------------------------------------

void JobState::On(const AgentJoined& event) {
  if (event.agent_idx < 0 || event.agent_idx >= options_.num_agents) return;
  Agent& agent = agents_[event.agent_idx];
  const bool first_time = !agent.joined;
  if (!event.host.empty()) agent.host = event.host;
  if (!members_.empty() && event.num_devices != agent.num_devices) {
    const std::string change =
        absl::StrCat("has ", event.num_devices, " devices now and had ",
                     agent.num_devices, " before");
    const std::string name = NameOfAgent(event.agent_idx);
    if (event.agent_idx == options_.own_agent) {
      End(Verdict::kFailed, absl::StrCat(name, " ", change));
      return;
    }
    if (agent.takes_part) Lose(event.agent_idx, change);
    actions_.emplace_back(LeaveOut{
        event.agent_idx,
        absl::StrCat(name, " ", change, "; the job goes on without it")});
    return;
  }
  // A new process prepares its data first, and cannot start workers before.
  if (!members_.empty() && agent.takes_part &&
      event.agent_idx != options_.own_agent && !event.data_ready &&
      phase_ != Phase::kWaitingForAgents && phase_ != Phase::kRejoining) {
    Lose(event.agent_idx, "was started again");
    return;
  }
  agent.joined = true;
  agent.data_ready = event.data_ready;
  agent.num_devices = event.num_devices;
  HearAgent(event.agent_idx);
  agent.disconnected = absl::InfiniteFuture();
  if (!agent.takes_part) {
    if (first_time) {
      actions_.emplace_back(Report{.event = "host_returned",
                                   .detail = NameOfAgent(event.agent_idx)});
    }
    OnReturn(event);
    return;
  }
  agent.live_workers = event.live_workers;
  // It may have lost its connection, and orders with it. Those to kill a
  // process come anew with the next tick, if there is still cause.
  for (auto& [worker_idx, worker] : workers_) {
    if (AgentOf(worker_idx) == event.agent_idx) worker.killed = false;
  }
  // Nobody would report the death of a process whose order to start was lost,
  // or that ended with an earlier agent of its host.
  for (const ProcessId& process : MissingFrom(event)) {
    On(WorkerDead{process, "not running when its agent came back",
                  /*ended_with_agent=*/true});
    if (phase_ == Phase::kEnded) return;
  }
  if ((phase_ == Phase::kWaitingForAgents || phase_ == Phase::kRejoining) &&
      AllAgentsReady()) {
    BecomeComplete();
  }
}

std::vector<ProcessId> JobState::MissingFrom(const AgentJoined& event) const {
  std::vector<ProcessId> missing;
  // Before there is a plan, agents that have not come hide whose worker it is.
  const bool waits =
      phase_ == Phase::kWaitingForAgents || phase_ == Phase::kRejoining;
  if (waits && members_.empty()) return missing;
  for (const auto& [worker_idx, worker] : workers_) {
    if (AgentOf(worker_idx) != event.agent_idx || !worker.ordered) continue;
    const ProcessId process = {worker_idx, worker.incarnation};
    if (std::find(event.live_workers.begin(), event.live_workers.end(),
                  process) == event.live_workers.end()) {
      missing.push_back(process);
    }
  }
  return missing;
}

void JobState::OnReturn(const AgentJoined& event) {
  // Others have the ranks of its processes.
  ForgetWorkers(event.agent_idx);
  for (const ProcessId& process : event.live_workers) {
    Worker& worker = workers_[process.worker];
    worker.incarnation = std::max(worker.incarnation, process.incarnation);
    // A process of this generation has waited on this spare host, and goes on
    // with that where the coordinator was started again or the agent cut off.
    if (options_.keeps_spare_hosts &&
        process.incarnation == ToInt(generation_)) {
      worker.ordered = true;
      worker.heard = now_;
      continue;
    }
    actions_.emplace_back(KillWorkerProcess{event.agent_idx, process,
                                            "the job went on without it"});
  }
  weighs_growth_ = false;
  ConsiderGrowth();
}

void JobState::On(const AgentDataReady& event) {
  if (event.agent_idx < 0 || event.agent_idx >= options_.num_agents) return;
  agents_[event.agent_idx].data_ready = true;
  HearAgent(event.agent_idx);
  if (!agents_[event.agent_idx].takes_part) ConsiderGrowth();
  if ((phase_ == Phase::kWaitingForAgents || phase_ == Phase::kRejoining) &&
      AllAgentsReady()) {
    BecomeComplete();
  }
}

void JobState::On(const AgentHeard& event) {
  if (event.agent_idx < 0 || event.agent_idx >= options_.num_agents) return;
  HearAgent(event.agent_idx);
}

void JobState::On(const AgentDisconnected& event) {
  if (event.agent_idx < 0 || event.agent_idx >= options_.num_agents) return;
  Agent& agent = agents_[event.agent_idx];
  if (!agent.takes_part) {
    Forget(event.agent_idx);
  } else if (agent.joined) {
    agent.disconnected = std::min(agent.disconnected, now_);
  }
}

void JobState::On(const AgentGaveUp& event) {
  const bool is_known =
      event.agent_idx >= 0 && event.agent_idx < options_.num_agents;
  if (is_known && !agents_[event.agent_idx].takes_part) {
    Forget(event.agent_idx);
    actions_.emplace_back(LeaveOut{event.agent_idx, event.reason});
    return;
  }
  End(event.bad_input ? Verdict::kRefused : Verdict::kFailed, event.reason);
}

bool JobState::AllAgentsReady() const {
  return std::all_of(agents_.begin(), agents_.end(), [](const Agent& agent) {
    return !agent.takes_part || (agent.joined && agent.data_ready);
  });
}

void JobState::AdoptLiveWorkers() {
  for (const Agent& agent : agents_) {
    for (const ProcessId& process : agent.live_workers) {
      Worker& worker = workers_[process.worker];
      if (worker.incarnation > process.incarnation) continue;
      worker.incarnation = process.incarnation;
      worker.ordered = true;
      if (!worker.joined) worker.heard = now_;
    }
  }
}

void JobState::BecomeComplete() {
  // After a restart there are processes already; know them again.
  AdoptLiveWorkers();
  if (phase_ == Phase::kRejoining && !members_.empty()) {
    FinishRejoining();
    return;
  }
  if (stop_requested_ && !HasStateToKeep()) {
    End(requeue_ ? Verdict::kRequeued : Verdict::kStopped, ReasonOfEarlyStop());
    return;
  }
  phase_ = Phase::kPlanning;
  plan_is_late_ = false;
  actions_.emplace_back(MakePlan{});
}

std::optional<Rank> JobState::RankOf(WorkerIdx worker) const {
  const std::vector<WorkerIdx> workers =
      members_.empty() ? Workers() : members_;
  const auto found = std::find(workers.begin(), workers.end(), worker);
  if (found == workers.end()) return std::nullopt;
  return Rank{static_cast<int32_t>(found - workers.begin())};
}

std::string JobState::HostOf(WorkerIdx worker) const {
  const int32_t agent_idx = AgentOf(worker);
  return agent_idx < 0 ? "" : agents_[agent_idx].host;
}

bool JobState::HasSeveralHosts() const {
  return std::any_of(agents_.begin(), agents_.end(), [&](const Agent& agent) {
    return agent.host != agents_[options_.own_agent].host;
  });
}

std::string JobState::NameOf(WorkerIdx worker) const {
  const std::optional<Rank> rank = RankOf(worker);
  const std::string name = rank.has_value()
                               ? absl::StrCat("rank ", ToInt(*rank))
                               : absl::StrCat("worker ", ToInt(worker));
  const std::string host = HostOf(worker);
  if (host.empty() || !HasSeveralHosts()) return name;
  return absl::StrCat(name, " (", host, ")");
}

std::string JobState::NameOfAgent(int32_t agent_idx) const {
  const std::string& host = agents_[agent_idx].host;
  return absl::StrCat("agent ", agent_idx, " of ", options_.num_agents,
                      host.empty() ? "" : absl::StrCat(" (", host, ")"));
}

std::vector<WorkerIdx> JobState::ActiveWorkers() const {
  return purpose_ == Purpose::kTrain ? members_ : Workers();
}

bool JobState::IsActive(WorkerIdx worker) const {
  if (purpose_ == Purpose::kTrain) {
    return std::find(members_.begin(), members_.end(), worker) !=
           members_.end();
  }
  const int32_t agent_idx = AgentOf(worker);
  return agent_idx >= 0 && agents_[agent_idx].takes_part;
}

// Planning. -------------------------------------------------------------------

void JobState::On(const PlanMade& event) {
  if (phase_ != Phase::kPlanning) return;
  if (plan_is_late_) {
    Regroup();
    return;
  }
  members_ = event.members;
  step_time_ = event.step_time;
  refusal_.clear();
  if (options_.profile_only) {
    End(Verdict::kFinished, "the profile is measured");
    return;
  }
  purpose_ = Purpose::kTrain;
  RaiseGeneration();
}

void JobState::On(const PlanNeedsProfile&) {
  if (phase_ != Phase::kPlanning) return;
  if (plan_is_late_) {
    Regroup();
    return;
  }
  purpose_ = Purpose::kProfile;
  RaiseGeneration();
}

void JobState::On(const PlanRefused& event) {
  if (phase_ != Phase::kPlanning) return;
  if (plan_is_late_) {
    Regroup();
    return;
  }
  // The devices that are left do not suffice, so failing ones must do.
  if (TakesBackDevices(event.reason)) {
    actions_.emplace_back(MakePlan{});
    return;
  }
  const bool has_lost =
      std::any_of(agents_.begin(), agents_.end(),
                  [](const Agent& agent) { return !agent.takes_part; });
  if (!has_lost) {
    End(members_.empty() ? Verdict::kRefused : Verdict::kFailed, event.reason);
    return;
  }
  // The hosts that are left do not suffice, so the job waits for the others.
  refusal_ = event.reason;
  actions_.emplace_back(
      Report{.event = "waiting_for_hosts", .detail = event.reason});
  for (Agent& agent : agents_) agent.takes_part = true;
  phase_ = Phase::kWaitingForAgents;
  phase_began_ = now_;
  if (AllAgentsReady()) BecomeComplete();
}

void JobState::On(const ProfileMade& event) {
  if (phase_ != Phase::kProfiling || event.generation != generation_) return;
  phase_ = Phase::kPlanning;
  actions_.emplace_back(MakePlan{});
}

void JobState::Regroup() {
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    if (i == options_.own_agent) continue;
    if (agents_[i].takes_part && !IsReady(i)) {
      actions_.emplace_back(
          Report{.event = "host_lost",
                 .detail = absl::StrCat(NameOfAgent(i), " is not there")});
      Forget(i);
      actions_.emplace_back(LeaveOut{i});
    }
    agents_[i].takes_part = IsReady(i);
  }
  failing_.TakeBackThoseOver(now_);
  EndGeneration();
  purpose_ = Purpose::kTrain;
  phase_ = Phase::kPlanning;
  plan_is_late_ = false;
  actions_.emplace_back(MakePlan{});
}

void JobState::ConsiderGrowth() {
  if (phase_ != Phase::kTraining || stop_requested_ ||
      static_cast<int32_t>(running_.size()) != NumMembers()) {
    return;
  }
  if (options_.keeps_spare_hosts) StartIdle();
  if (weighs_growth_) return;
  num_over_ = failing_.NumOver(now_);
  bool can_grow = num_over_ > 0;
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    can_grow |= !agents_[i].takes_part && IsReady(i) &&
                NumUsableDevices(i, /*for_growth=*/true) > 0;
  }
  if (!can_grow) return;
  weighs_growth_ = true;
  actions_.emplace_back(WeighGrowth{generation_});
}

void JobState::On(const GrowthWeighed& event) {
  if (event.generation != generation_ || phase_ != Phase::kTraining ||
      !event.is_worthwhile || stop_requested_ || pauses_) {
    return;
  }
  actions_.emplace_back(Report{.event = "taking_in_hosts"});
  StartIdle();
  pauses_ = true;
  actions_.emplace_back(TellWorkersToPause{});
}

void JobState::StartIdle() {
  // The coordinator before may have started some in this generation whose
  // deaths are still to be heard of.
  if (generation_ == recovered_generation_) return;
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    if (!IsReady(i)) continue;
    for (const WorkerIdx worker_idx : WorkersOf(i)) {
      if (IsActive(worker_idx) || !IsUsable(worker_idx, /*for_growth=*/true)) {
        continue;
      }
      Worker& worker = workers_[worker_idx];
      // A process of this generation that ended is replaced in a later one.
      if (worker.ordered || worker.incarnation >= ToInt(generation_)) continue;
      worker = {.incarnation = static_cast<int32_t>(ToInt(generation_)),
                .ordered = true,
                .heard = now_};
      actions_.emplace_back(
          StartWorkerProcess{i, {worker_idx, worker.incarnation}});
    }
  }
}

// Generations. ----------------------------------------------------------------

void JobState::RaiseGeneration() {
  EndGeneration();
  StartMissing();
}

void JobState::EndGeneration() {
  generation_ = Generation{ToInt(generation_) + 1};
  phase_ = Phase::kStarting;
  phase_began_ = now_;
  running_.clear();
  parts_.clear();
  failed_steps_.clear();
  restored_steps_ = -1;
  done_.clear();
  done_steps_ = -1;
  done_stopped_ = false;
  done_saved_ = false;
  weighs_growth_ = false;
  num_over_ = 0;
  pauses_ = false;
  paused_.clear();
  actions_.emplace_back(RecordGeneration{generation_});
  TellToClear();
}

void JobState::TellToClear() {
  for (auto& [worker_idx, worker] : workers_) {
    if (!worker.joined) continue;
    worker.told_to_clear = std::min(worker.told_to_clear, now_);
  }
  actions_.emplace_back(AbortOlder{generation_});
}

void JobState::StartMissing() {
  std::vector<WorkerIdx> wanted = ActiveWorkers();
  // Those without a rank may have left state in memory, for which they are
  // needed once more.
  for (const auto& [worker_idx, worker] : workers_) {
    const int32_t agent_idx = AgentOf(worker_idx);
    if (agent_idx >= 0 && agents_[agent_idx].takes_part && IsReady(agent_idx) &&
        worker.incarnation > 0 && worker.incarnation < ToInt(generation_) &&
        !IsActive(worker_idx)) {
      wanted.push_back(worker_idx);
    }
  }
  for (WorkerIdx worker_idx : wanted) {
    Worker& worker = workers_[worker_idx];
    if (worker.ordered) continue;
    worker = {.incarnation = static_cast<int32_t>(ToInt(generation_)),
              .ordered = true,
              .heard = now_};
    actions_.emplace_back(StartWorkerProcess{AgentOf(worker_idx),
                                             {worker_idx, worker.incarnation}});
  }
}

void JobState::BeginIfAllCleared() {
  if (phase_ != Phase::kStarting) return;
  const std::vector<WorkerIdx> active = ActiveWorkers();
  for (WorkerIdx worker_idx : active) {
    const Worker& worker = workers_[worker_idx];
    if (!worker.joined || worker.killed || worker.cleared_for != generation_) {
      return;
    }
  }
  // Workers without a rank may hold state that the generation restores, and
  // tell when they are clear.
  for (const auto& [worker_idx, worker] : workers_) {
    const int32_t agent_idx = AgentOf(worker_idx);
    const bool is_there = agent_idx >= 0 && agents_[agent_idx].takes_part &&
                          worker.ordered && !worker.killed;
    if (is_there && worker.cleared_for != generation_) return;
  }
  // The commits decide which step is restored. Workers took a while to clear,
  // in which a commit on a disk that works has ended.
  if (!committing_.empty()) {
    GiveUpCommitsFor("a recovery does not wait for it");
    return;
  }
  for (WorkerIdx worker_idx : active) {
    workers_[worker_idx].given = generation_;
    workers_[worker_idx].phase = WorkerPhase::kStarting;
  }
  phase_ = purpose_ == Purpose::kProfile ? Phase::kProfiling : Phase::kTraining;
  phase_began_ = now_;
  is_device_known_ = false;
  actions_.emplace_back(Report{
      .event = "generation_started",
      .step = committed_step_,
      .detail = purpose_ == Purpose::kProfile ? "measures a profile" : ""});
  actions_.emplace_back(
      BeginGeneration{generation_, purpose_, active, committed_step_});
  if (stop_requested_) actions_.emplace_back(TellWorkersToStop{});
}

bool JobState::MayRestart(const std::string& cause) {
  if (++restarts_ <= options_.max_restarts) return true;
  End(Verdict::kFailed,
      absl::StrCat("more than fault.max_restarts = ", options_.max_restarts,
                   " restarts without a checkpoint or progress in between; "
                   "the last cause: ",
                   cause));
  return false;
}

void JobState::ReportFailed(WorkerIdx worker, const std::string& cause) {
  actions_.emplace_back(Report{.event = "generation_failed",
                               .worker = worker,
                               .detail = absl::StrCat(NameOf(worker), cause),
                               .generation = ToInt(generation_)});
}

void JobState::Recover(WorkerIdx worker, const std::string& cause) {
  ReportFailed(worker, cause);
  Restart(absl::StrCat(NameOf(worker), cause));
}

void JobState::Restart(const std::string& cause) {
  if (MayRestart(cause)) RaiseGeneration();
}

void JobState::FinishRejoining() {
  for (WorkerIdx worker_idx : members_) {
    if (!workers_[worker_idx].ordered) {
      Recover(worker_idx, " was gone when the coordinator came back");
      return;
    }
  }
  bool all_running = true;
  for (WorkerIdx worker_idx : members_) {
    const Worker& worker = workers_[worker_idx];
    if (!worker.joined) return;  // Wait; silence is noticed by the clock.
    all_running = all_running && worker.given == generation_ &&
                  worker.phase == WorkerPhase::kRunning;
  }
  if (!all_running) {
    RaiseGeneration();
    return;
  }
  phase_ = Phase::kTraining;
  running_.insert(members_.begin(), members_.end());
  has_trained_ = true;
  actions_.emplace_back(
      Report{.event = "training",
             .detail = "went on while the coordinator was restarted"});
  if (stop_requested_) actions_.emplace_back(TellWorkersToStop{});
  ConsiderGrowth();
  FinishIfDone();
  EndPauseIfAllStopped();
}

}  // namespace millrace
