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
      last_missing_report_(now),
      agents_(options.num_agents) {
  CHECK(options.num_agents > 0);
  const size_t num_known = std::min(agents_.size(), options.hosts.size());
  for (size_t i = 0; i < num_known; ++i) agents_[i].host = options.hosts[i];
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
  if (!event.host.empty()) agent.host = event.host;
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
  actions_.emplace_back(MakePlan{});
}

int32_t JobState::AgentOf(Rank rank) const {
  if (ToInt(rank) < 0) return -1;
  int32_t first_rank = 0;
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    first_rank += agents_[i].num_devices;
    if (ToInt(rank) < first_rank) return i;
  }
  return -1;
}

std::string JobState::HostOf(Rank rank) const {
  const int32_t agent_idx = AgentOf(rank);
  return agent_idx < 0 ? "" : agents_[agent_idx].host;
}

bool JobState::HasSeveralHosts() const {
  return std::any_of(agents_.begin(), agents_.end(), [&](const Agent& agent) {
    return agent.host != agents_[0].host;
  });
}

std::string JobState::NameOf(Rank rank) const {
  const std::string name = absl::StrCat("rank ", ToInt(rank));
  const std::string host = HostOf(rank);
  if (host.empty() || !HasSeveralHosts()) return name;
  return absl::StrCat(name, " (", host, ")");
}

std::string JobState::NameOfAgent(int32_t agent_idx) const {
  const std::string& host = agents_[agent_idx].host;
  return absl::StrCat("agent ", agent_idx, " of ", options_.num_agents,
                      host.empty() ? "" : absl::StrCat(" (", host, ")"));
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
  actions_.emplace_back(MakePlan{});
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
  actions_.emplace_back(RecordGeneration{generation_});
  TellToClear();
  StartMissing();
}

void JobState::TellToClear() {
  for (auto& [rank, worker] : workers_) {
    if (!worker.joined) continue;
    worker.told_to_clear = std::min(worker.told_to_clear, now_);
  }
  actions_.emplace_back(AbortOlder{generation_});
}

void JobState::StartMissing() {
  for (int32_t i = 0; i < NumActiveRanks(); ++i) {
    Worker& worker = workers_[Rank{i}];
    if (worker.ordered) continue;
    worker = {.incarnation = static_cast<int32_t>(ToInt(generation_)),
              .ordered = true,
              .heard = now_};
    actions_.emplace_back(
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
  actions_.emplace_back(Report{
      .event = "generation_started",
      .step = committed_step_,
      .detail = purpose_ == Purpose::kProfile ? "measures a profile" : ""});
  actions_.emplace_back(BeginGeneration{generation_, purpose_, NumActiveRanks(),
                                        committed_step_});
  if (stop_requested_) actions_.emplace_back(TellWorkersToStop{});
}

void JobState::Recover(Rank rank, const std::string& cause) {
  actions_.emplace_back(Report{.event = "generation_failed",
                               .rank = ToInt(rank),
                               .detail = absl::StrCat(NameOf(rank), cause),
                               .generation = ToInt(generation_)});
  Restart(absl::StrCat(NameOf(rank), cause));
}

void JobState::Restart(const std::string& cause) {
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
      Recover(Rank{i}, " was gone when the coordinator came back");
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
  actions_.emplace_back(
      Report{.event = "training",
             .detail = "went on while the coordinator was restarted"});
  if (stop_requested_) actions_.emplace_back(TellWorkersToStop{});
  FinishIfDone();
}

}  // namespace millrace
