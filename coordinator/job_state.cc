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
      num_ranks_(recovered.num_ranks),
      committed_step_(recovered.committed_step),
      phase_began_(now),
      last_tick_(now),
      agents_(options.num_agents) {
  CHECK(options.num_agents > 0);
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
  agent.joined = true;
  agent.data_ready = event.data_ready;
  agent.num_devices = event.num_devices;
  agent.heard = now_;
  agent.live_workers = event.live_workers;
  if (phase_ == Phase::kWaitingForAgents || phase_ == Phase::kRejoining) {
    if (AllAgentsReady()) BecomeComplete();
    return;
  }
  if (first_time) return;
  // The agent came back after a lost connection. Orders may have been lost with
  // it: those to kill a process come anew with the next tick, if there is still
  // cause; and of a process that never started nobody would report the death.
  for (auto& [rank, worker] : workers_) {
    if (AgentOf(rank) == event.agent_idx) worker.killed = false;
  }
  for (const auto& [rank, worker] : workers_) {
    if (AgentOf(rank) != event.agent_idx || !worker.ordered) continue;
    const RankProcess process = {rank, worker.incarnation};
    if (std::find(event.live_workers.begin(), event.live_workers.end(),
                  process) == event.live_workers.end()) {
      On(WorkerDead{process, "not running when its agent came back"});
      return;
    }
  }
}

void JobState::On(const AgentDataReady& event) {
  if (event.agent_idx < 0 || event.agent_idx >= options_.num_agents) return;
  agents_[event.agent_idx].data_ready = true;
  agents_[event.agent_idx].heard = now_;
  if ((phase_ == Phase::kWaitingForAgents || phase_ == Phase::kRejoining) &&
      AllAgentsReady()) {
    BecomeComplete();
  }
}

void JobState::On(const AgentHeard& event) {
  if (event.agent_idx < 0 || event.agent_idx >= options_.num_agents) return;
  agents_[event.agent_idx].heard = now_;
}

void JobState::On(const AgentGaveUp& event) {
  End(event.bad_input ? Verdict::kRefused : Verdict::kFailed, event.reason);
}

bool JobState::AllAgentsReady() const {
  return std::all_of(agents_.begin(), agents_.end(), [](const Agent& agent) {
    return agent.joined && agent.data_ready;
  });
}

void JobState::BecomeComplete() {
  // After a restart there are processes already; know them again.
  for (const Agent& agent : agents_) {
    for (const RankProcess& process : agent.live_workers) {
      Worker& worker = workers_[process.rank];
      if (worker.incarnation > process.incarnation) continue;
      worker.incarnation = process.incarnation;
      worker.ordered = true;
      if (!worker.joined) worker.heard = now_;
    }
  }
  if (phase_ == Phase::kRejoining && num_ranks_ > 0) {
    FinishRejoining();
    return;
  }
  phase_ = Phase::kPlanning;
  actions_.push_back(MakePlan{});
}

int32_t JobState::AgentOf(Rank rank) const {
  int32_t first_rank = 0;
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    first_rank += agents_[i].num_devices;
    if (ToInt(rank) < first_rank) return i;
  }
  return -1;
}

int32_t JobState::NumActiveRanks() const {
  if (purpose_ == Purpose::kTrain) return num_ranks_;
  int32_t total = 0;
  for (const Agent& agent : agents_) total += agent.num_devices;
  return total;
}

// Planning. -------------------------------------------------------------------

void JobState::On(const PlanMade& event) {
  if (phase_ != Phase::kPlanning) return;
  num_ranks_ = event.num_ranks;
  if (options_.profile_only) {
    End(Verdict::kFinished, "the profile is measured");
    return;
  }
  purpose_ = Purpose::kTrain;
  RaiseGeneration();
}

void JobState::On(const PlanNeedsProfile&) {
  if (phase_ != Phase::kPlanning) return;
  purpose_ = Purpose::kProfile;
  RaiseGeneration();
}

void JobState::On(const PlanRefused& event) {
  if (phase_ != Phase::kPlanning) return;
  End(Verdict::kRefused, event.reason);
}

void JobState::On(const ProfileMade& event) {
  if (phase_ != Phase::kProfiling || event.generation != generation_) return;
  phase_ = Phase::kPlanning;
  actions_.push_back(MakePlan{});
}

// Generations. ----------------------------------------------------------------

void JobState::RaiseGeneration() {
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
  actions_.push_back(RecordGeneration{generation_});
  TellToClear();
  StartMissing();
}

void JobState::TellToClear() {
  for (auto& [rank, worker] : workers_) {
    if (!worker.joined) continue;
    worker.told_to_clear = std::min(worker.told_to_clear, now_);
  }
  actions_.push_back(AbortOlder{generation_});
}

void JobState::StartMissing() {
  for (int32_t i = 0; i < NumActiveRanks(); ++i) {
    Worker& worker = workers_[Rank{i}];
    if (worker.ordered) continue;
    worker = {.incarnation = static_cast<int32_t>(ToInt(generation_)),
              .ordered = true,
              .heard = now_};
    actions_.push_back(
        StartWorkerProcess{AgentOf(Rank{i}), {Rank{i}, worker.incarnation}});
  }
}

void JobState::BeginIfAllCleared() {
  if (phase_ != Phase::kStarting) return;
  for (int32_t i = 0; i < NumActiveRanks(); ++i) {
    const Worker& worker = workers_[Rank{i}];
    if (!worker.joined || worker.killed || worker.cleared_for != generation_) {
      return;
    }
  }
  for (int32_t i = 0; i < NumActiveRanks(); ++i) {
    workers_[Rank{i}].given = generation_;
    workers_[Rank{i}].phase = WorkerPhase::kStarting;
  }
  phase_ = purpose_ == Purpose::kProfile ? Phase::kProfiling : Phase::kTraining;
  phase_began_ = now_;
  actions_.push_back(Report{
      .event = "generation_started",
      .step = committed_step_,
      .detail = purpose_ == Purpose::kProfile ? "measures a profile" : ""});
  actions_.push_back(BeginGeneration{generation_, purpose_, NumActiveRanks(),
                                     committed_step_});
  if (stop_requested_) actions_.push_back(TellWorkersToStop{});
}

void JobState::Recover(const std::string& cause) {
  if (++restarts_ > options_.max_restarts) {
    End(Verdict::kFailed,
        absl::StrCat("more than fault.max_restarts = ", options_.max_restarts,
                     " restarts; the last cause: ", cause));
    return;
  }
  RaiseGeneration();
}

void JobState::FinishRejoining() {
  for (int32_t i = 0; i < num_ranks_; ++i) {
    if (!workers_[Rank{i}].ordered) {
      Recover(absl::StrCat("rank ", i,
                           " was gone when the coordinator came "
                           "back"));
      return;
    }
  }
  bool all_running = true;
  for (int32_t i = 0; i < num_ranks_; ++i) {
    const Worker& worker = workers_[Rank{i}];
    if (!worker.joined) return;  // Wait; silence is noticed by the clock.
    all_running = all_running && worker.given == generation_ &&
                  worker.phase == WorkerPhase::kRunning;
  }
  if (!all_running) {
    RaiseGeneration();
    return;
  }
  phase_ = Phase::kTraining;
  for (int32_t i = 0; i < num_ranks_; ++i) running_.insert(Rank{i});
  actions_.push_back(
      Report{.event = "training",
             .detail = "went on while the coordinator was restarted"});
  if (stop_requested_) actions_.push_back(TellWorkersToStop{});
  FinishIfDone();
}

// Workers. --------------------------------------------------------------------

JobState::Worker* JobState::Find(const RankProcess& process) {
  const auto found = workers_.find(process.rank);
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
      Worker& known = workers_[event.process.rank];
      if (known.incarnation > event.process.incarnation) return;
      known.incarnation = event.process.incarnation;
      known.ordered = true;
      worker = &known;
    } else {
      actions_.push_back(KillWorkerProcess{AgentOf(event.process.rank),
                                           event.process,
                                           "a later process has its rank"});
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
      if (ToInt(event.process.rank) >= NumActiveRanks()) break;
      if (event.generation != generation_ ||
          event.phase == WorkerPhase::kIdle) {
        Recover(absl::StrCat("rank ", ToInt(event.process.rank),
                             " lost its connection and its orders"));
      } else if (stop_requested_) {
        actions_.push_back(TellWorkersToStop{});
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
  Worker* worker = Find(event.process);
  if (worker == nullptr) return;
  const int32_t rank = ToInt(event.process.rank);
  worker->ordered = false;
  worker->joined = false;
  actions_.push_back(
      Report{.event = "worker_died", .rank = rank, .detail = event.detail});
  // Agents list the living; the dead must not rise again from an older list.
  for (Agent& agent : agents_) std::erase(agent.live_workers, event.process);
  switch (phase_) {
    case Phase::kStarting:
    case Phase::kProfiling:
    case Phase::kTraining:
      if (rank < NumActiveRanks()) {
        Recover(absl::StrCat("rank ", rank, ": ", event.detail));
      }
      break;
    case Phase::kRejoining:
      if (AllAgentsReady()) BecomeComplete();
      break;
    default:
      break;  // A plan starts what is missing.
  }
}

void JobState::On(const WorkerRunning& event) {
  if (event.generation != generation_ || phase_ != Phase::kTraining) return;
  workers_[event.rank].phase = WorkerPhase::kRunning;
  restored_steps_ = event.completed_steps;
  if (!running_.insert(event.rank).second) return;
  if (static_cast<int32_t>(running_.size()) == num_ranks_) {
    actions_.push_back(
        Report{.event = "training", .step = event.completed_steps});
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
  const std::string cause =
      absl::StrCat("rank ", ToInt(event.rank), ": ", event.status.message());
  if (IsHopeless(event.status)) {
    End(Verdict::kFailed, cause);
  } else {
    Recover(cause);
  }
}

// Checkpoints and the end. ----------------------------------------------------

void JobState::On(const PartWritten& event) {
  if (event.generation != generation_ || event.step <= committed_step_) return;
  if (!event.ok) {
    failed_steps_.insert(event.step);
    FinishIfDone();
    return;
  }
  std::set<Rank>& written = parts_[event.step];
  if (!written.insert(event.rank).second) return;
  if (static_cast<int32_t>(written.size()) == num_ranks_) {
    actions_.push_back(CommitStep{generation_, event.step});
  }
}

void JobState::On(const StepCommitted& event) {
  committed_step_ = std::max(committed_step_, event.step);
  std::erase_if(parts_, [&](const auto& entry) {
    return entry.first <= committed_step_;
  });
  actions_.push_back(
      Report{.event = "checkpoint_committed", .step = event.step});
  FinishIfDone();
}

void JobState::On(const CommitFailed& event) {
  failed_steps_.insert(event.step);
  last_commit_error_ = event.reason;
  FinishIfDone();
}

void JobState::On(const RestoredEarlier& event) {
  // Lower, so that the steps trained again are committed again.
  committed_step_ = std::min(committed_step_, event.step);
}

void JobState::On(const NothingToRestore& event) {
  End(Verdict::kFailed, event.reason);
}

void JobState::On(const WorkerDone& event) {
  if (event.generation != generation_) return;
  done_.insert(event.rank);
  done_steps_ = event.steps;
  done_stopped_ = event.stopped;
  done_saved_ = event.saved;
  FinishIfDone();
}

void JobState::FinishIfDone() {
  if (phase_ != Phase::kTraining ||
      static_cast<int32_t>(done_.size()) != num_ranks_) {
    return;
  }
  if (failed_steps_.contains(done_steps_)) {
    End(Verdict::kFailed,
        absl::StrCat("all steps are done, but the last checkpoint could not "
                     "be written: ",
                     last_commit_error_));
    return;
  }
  // What was restored and not trained further needs no new checkpoint.
  if (done_saved_ && committed_step_ < done_steps_ &&
      restored_steps_ != done_steps_) {
    return;
  }
  if (done_stopped_) {
    End(Verdict::kStopped, "stopped by request after a checkpoint");
  } else {
    End(Verdict::kFinished, "");
  }
}

void JobState::On(const StopRequested& event) {
  if (event.now) {
    End(Verdict::kBroken,
        "stopped at once; steps since the last checkpoint "
        "are lost");
    return;
  }
  if (stop_requested_) return;
  stop_requested_ = true;
  actions_.push_back(Report{.event = "stop_requested"});
  switch (phase_) {
    case Phase::kRejoining:
      break;
    case Phase::kStarting:
      // Before the first step there is nothing to keep.
      if (purpose_ == Purpose::kTrain && committed_step_ >= 0) break;
      End(Verdict::kStopped, "stopped before training");
      break;
    case Phase::kTraining:
      actions_.push_back(TellWorkersToStop{});
      break;
    default:
      End(Verdict::kStopped, "stopped before training");
  }
}

void JobState::On(const Tick&) {
  ForgiveOwnStall();
  last_tick_ = now_;
  CheckSilence();
}

void JobState::ForgiveOwnStall() {
  // If this process itself stood still (a stopped machine, a long commit), what
  // others sent meanwhile may not have been handled yet.
  const absl::Duration gap = now_ - last_tick_;
  if (gap < options_.heartbeat_timeout / 2) return;
  for (Agent& agent : agents_) agent.heard = now_;
  for (auto& [rank, worker] : workers_) {
    worker.heard = now_;
    if (worker.told_to_clear <= now_) worker.told_to_clear = now_;
  }
  phase_began_ = std::max(phase_began_, now_ - options_.join_timeout / 2);
}

void JobState::CheckSilence() {
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    const Agent& agent = agents_[i];
    const absl::Time since = agent.joined ? agent.heard : phase_began_;
    if (now_ - since > options_.join_timeout) {
      End(Verdict::kFailed,
          absl::StrCat("agent ", i, " of ", options_.num_agents,
                       agent.joined ? " has been silent for "
                                    : " has not joined within ",
                       absl::FormatDuration(options_.join_timeout)));
      return;
    }
  }
  for (auto& [rank, worker] : workers_) {
    if (!worker.ordered || worker.killed) continue;
    std::string reason = ReasonToKill(worker);
    if (reason.empty()) continue;
    worker.killed = true;
    actions_.push_back(KillWorkerProcess{
        AgentOf(rank), {rank, worker.incarnation}, std::move(reason)});
  }
}

std::string JobState::ReasonToKill(const Worker& worker) const {
  const absl::Duration limit =
      worker.joined ? options_.heartbeat_timeout : options_.join_timeout;
  if (now_ - worker.heard > limit) {
    return absl::StrCat("silent for ", absl::FormatDuration(limit));
  }
  if (worker.joined && now_ - worker.told_to_clear > options_.clear_timeout) {
    return absl::StrCat("hangs in ending generation ", ToInt(worker.given),
                        ", which it was told to ",
                        absl::FormatDuration(options_.clear_timeout), " ago");
  }
  return "";
}

void JobState::End(Verdict verdict, const std::string& reason) {
  phase_ = Phase::kEnded;
  actions_.push_back(
      EndJob{verdict, reason, std::max(done_steps_, committed_step_)});
}

}  // namespace millrace
