// The job's state machine: is the job where it should be, and if not, what has
// to happen? Pure: events and the time go in, actions come out. The coordinator
// (coordinator.h) turns messages into events and actions into messages, and
// tests/sim runs this same class on virtual time. Agents, plan and generations
// are in job_state.cc, workers in job_state_workers.cc, devices in
// job_state_devices.cc, checkpoints and the end in job_state_end.cc.
//
//   waiting for agents -> planning (-> profiling -> planning) -> starting
//   generation g -> training -> finished
//
// A death or failure raises the generation: every worker stops, reports ready,
// and all start again from the last committed checkpoint. Messages of an older
// generation, or of an earlier process of a worker, are ignored.
//
// A host that is lost while the job has a plan is left out: the others plan
// anew for the devices that remain and go on. A host that comes back is taken
// in again once that pays: its processes start, training pauses with its state
// in memory, or else stops with a checkpoint, all plan, and go on from there.
// The agent of the coordinator's host is the exception; without it there is no
// coordinator. Another host's may go on as its successor. A device that fails
// twice is left out likewise, and taken in again after a while.

#ifndef MILLRACE_COORDINATOR_JOB_STATE_H_
#define MILLRACE_COORDINATOR_JOB_STATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "coordinator/failing_devices.h"

namespace millrace {

// Events. ---------------------------------------------------------------------

struct ProcessId {
  WorkerIdx worker;
  // The generation that the process was started for: a later process of the
  // worker has a higher one, also across restarts of the coordinator.
  int32_t incarnation;
  friend auto operator<=>(const ProcessId&, const ProcessId&) = default;
};

struct AgentJoined {  // Also after a reconnection.
  int32_t agent_idx;
  std::string host;
  int32_t num_devices;
  bool data_ready;
  std::vector<ProcessId> live_workers;
};
struct AgentDataReady {
  int32_t agent_idx;
};
struct AgentHeard {
  int32_t agent_idx;
};
struct AgentDisconnected {  // It may come back.
  int32_t agent_idx;
};
struct AgentGaveUp {
  int32_t agent_idx;
  std::string reason;
  bool bad_input;
};
struct PlanMade {
  std::vector<WorkerIdx> members;  // By rank.
  absl::Duration step_time;        // Predicted.
};
struct PlanNeedsProfile {};
struct PlanRefused {
  std::string reason;
};
struct ProfileMade {
  Generation generation;
};
// Answers WeighGrowth.
struct GrowthWeighed {
  Generation generation;
  bool is_worthwhile;
};
enum class WorkerPhase { kIdle, kStarting, kRunning };
struct WorkerJoined {  // Also after a reconnection.
  ProcessId process;
  Generation generation;  // The last it was given.
  WorkerPhase phase;
};
struct WorkerHeard {
  ProcessId process;
};
struct WorkerCleared {  // Holds nothing of an older generation any more.
  ProcessId process;
  Generation generation;
};
struct WorkerDead {
  ProcessId process;
  std::string detail;
  bool ended_with_agent = false;  // So its device is not to blame.
};
struct WorkerRunning {  // State restored; steps follow.
  WorkerIdx worker;
  Generation generation;
  int64_t completed_steps;
  bool from_memory = false;  // Else a checkpoint on disk has the state.
};
struct WorkerFailed {
  WorkerIdx worker;
  Generation generation;
  absl::Status status;
};
// The generation stands still though all are heard of (fault/hang_watch.h).
struct RanksHang {
  Generation generation;
  // Whom the others wait for, and for each what it is at; may be empty.
  std::vector<WorkerIdx> culprits;
  std::vector<std::string> reasons;
  std::string explanation;
};
// Replicas of the state are not equal after a step (fault/replica_check.h).
struct ReplicasDiffer {
  Generation generation;
  int64_t step;
  std::vector<WorkerIdx> suspects;
  bool outvoted;  // The suspects differ from a majority, and are replaced.
  std::string explanation;
};
// The steps since the last checkpoint are to be trained again.
struct RollBack {
  Generation generation;
  std::string cause;
};
// The process is to give its place to another one.
struct ReplaceWorker {
  WorkerIdx worker;
  std::string reason;
};
// Nothing is gained by going on.
struct TrainingHopeless {
  Generation generation;
  std::string reason;
};
struct PartWritten {
  WorkerIdx worker;
  Generation generation;
  int64_t step;
  std::string error;  // Empty if it was written.
};
// Answers to CommitStep, which may come late and after other events: every
// CommitStep has one.
struct StepCommitted {
  Generation generation;
  int64_t step;
};
struct CommitFailed {
  Generation generation;
  int64_t step;
  std::string reason;
};
// Answers to BeginGeneration, if what was to be restored is damaged. An earlier
// checkpoint takes its place (the later steps are trained again), or none can.
struct RestoredEarlier {
  int64_t step;
};
struct NothingToRestore {
  std::string reason;
};
struct WorkerDone {
  WorkerIdx worker;
  Generation generation;
  int64_t steps;
  bool stopped;
  bool saved;  // A checkpoint of these steps was written, or restored.
};
// It has stopped after a step, before the job's last, and waits for AbortOlder
// or TellWorkersToStop.
struct WorkerPaused {
  WorkerIdx worker;
  Generation generation;
  bool kept;  // Its part of the state of that step is in memory.
};
struct StopRequested {
  bool now;
  bool requeue = false;  // The job is to be started again.
};
struct Tick {};

using JobEvent = std::variant<
    AgentJoined, AgentDataReady, AgentHeard, AgentDisconnected, AgentGaveUp,
    PlanMade, PlanNeedsProfile, PlanRefused, ProfileMade, GrowthWeighed,
    WorkerJoined, WorkerHeard, WorkerCleared, WorkerDead, WorkerRunning,
    WorkerFailed, RanksHang, ReplicasDiffer, RollBack, ReplaceWorker,
    TrainingHopeless, PartWritten, StepCommitted, CommitFailed, RestoredEarlier,
    NothingToRestore, WorkerDone, WorkerPaused, StopRequested, Tick>;

// Actions. --------------------------------------------------------------------

// For the workers of Workers(). Answer with PlanMade, PlanNeedsProfile or
// PlanRefused.
struct MakePlan {};
// A host was lost while the plan was made, so that it is of no use. Its answer
// is still waited for: whatever it is, the sooner the better.
struct AbandonPlan {};
// Hosts have come that take no part: would the steps that are left be done
// sooner with them, the change included? Answer with GrowthWeighed.
struct WeighGrowth {
  Generation generation;
};
// Ends its connections and those of its workers, so that whoever still lives
// there reports anew.
struct LeaveOut {
  int32_t agent_idx;
  std::string refusal = "";  // If it cannot take part any more: why.
};
struct StartWorkerProcess {
  int32_t agent_idx;
  ProcessId process;
};
struct KillWorkerProcess {
  int32_t agent_idx;
  ProcessId process;
  std::string reason;
};
// Must be on disk before the actions behind it are carried out.
struct RecordGeneration {
  Generation generation;
};
// To every worker there is: end what runs and report cleared for `generation`.
struct AbortOlder {
  Generation generation;
};
enum class Purpose { kTrain, kProfile };
struct BeginGeneration {
  Generation generation;
  Purpose purpose;
  std::vector<WorkerIdx> members;  // By rank.
  int64_t restore_step;            // The run's last commit; -1: its beginning.
};
// All parts of the step are written. Answer with StepCommitted or CommitFailed.
struct CommitStep {
  Generation generation;
  int64_t step;
};
// A recovery waits for the answers to CommitStep. Those that can still fail are
// to fail, and the others, whose last write has begun, end as they end.
struct GiveUpCommits {
  std::string reason;
};
struct TellWorkersToStop {};
// After the step under way each puts its part of the state into memory. Answer
// with WorkerPaused.
struct TellWorkersToPause {};
// For the events file and the people who read it; see docs/run_directory.md.
struct Report {
  std::string event = "";
  int64_t step = -1;
  std::optional<WorkerIdx> worker = std::nullopt;
  std::string detail = "";
  int64_t generation = -1;  // Below zero: the current one.
};
// kStopped: gracefully, by request. kRequeued: likewise, to be started again.
// kBroken: at once, by request.
enum class Verdict {
  kFinished,
  kStopped,
  kRequeued,
  kBroken,
  kFailed,
  kRefused
};
// The last action ever.
struct EndJob {
  Verdict verdict;
  std::string reason;
  int64_t steps;
};

using JobAction =
    std::variant<MakePlan, AbandonPlan, WeighGrowth, LeaveOut,
                 StartWorkerProcess, KillWorkerProcess, RecordGeneration,
                 AbortOlder, BeginGeneration, CommitStep, GiveUpCommits,
                 TellWorkersToStop, TellWorkersToPause, Report, EndJob>;

// The machine. ----------------------------------------------------------------

struct JobStateOptions {
  int32_t num_agents;
  bool profile_only = false;  // End once a profile is made.
  absl::Duration heartbeat_timeout = absl::Seconds(2);
  // The same for a worker that has not begun to train: it may lock memory and
  // load libraries for long.
  absl::Duration starting_timeout = absl::Seconds(10);
  // How long workers may take to report cleared after AbortOlder, besides a
  // predicted step: a GPU runs the one that it was given to its end.
  absl::Duration clear_timeout = absl::Seconds(20);
  // How long agents may take to join, and to come back after a lost connection
  // or a restart of the coordinator.
  absl::Duration join_timeout = absl::Seconds(60);
  // How long they may take to join for the first time, if that is longer.
  absl::Duration first_join_timeout = absl::ZeroDuration();
  // A host is lost once its agent has been silent for so long, or has not come
  // back for so long after its connection ended.
  absl::Duration host_timeout = absl::Seconds(10);
  absl::Duration return_timeout = absl::Seconds(2);
  int32_t max_restarts = 100;  // Without a commit or progress in between.
  // By agent, as far as the launcher says so.
  std::vector<std::string> hosts;
  // The agent on the coordinator's host, without which there is no coordinator.
  int32_t own_agent = 0;
  // How long a device is left out that failed twice (FailingDevices).
  absl::Duration leave_out_time = absl::ZeroDuration();
  // Processes of workers without a rank are started once the others train, so
  // that a spare host need not wait for its own.
  bool keeps_spare_hosts = false;
  // The coordinator has come to this host from that agent's, which is probably
  // lost: it has return_timeout to come back once the others are there. They
  // look for the coordinator all the time and have host_timeout.
  std::optional<int32_t> taken_over_from;
};

// The state that a restarted coordinator reads from its log.
struct RecoveredJob {
  Generation generation{};
  std::vector<WorkerIdx> members;  // Of the plan, by rank; empty: none yet.
  // Of all agents, those included that take no part; empty before a plan.
  std::vector<int32_t> devices_by_agent;
  std::vector<WorkerIdx> left_out;  // Devices, as the plan was made.
  int64_t committed_step = -1;      // In this run; -1: none.
  absl::Duration step_time;         // The plan's, predicted.
};

class JobState {
 public:
  JobState(const JobStateOptions& options, const RecoveredJob& recovered,
           absl::Time now);

  // `now` never goes back.
  std::vector<JobAction> Handle(const JobEvent& event, absl::Time now);

  enum class Phase {
    kWaitingForAgents,
    kRejoining,  // After a restart: agents and workers report what they run.
    kPlanning,
    kStarting,  // Workers are started or cleared for the generation.
    kProfiling,
    kTraining,  // From BeginGeneration on.
    kEnded,
  };
  Phase phase() const { return phase_; }
  Generation generation() const { return generation_; }
  int64_t committed_step() const { return committed_step_; }
  // The generation that comes begins with the state that the one before left in
  // memory when it paused.
  bool was_paused() const { return was_paused_; }
  int32_t AgentOf(WorkerIdx worker) const;     // -1: of none.
  std::string HostOf(WorkerIdx worker) const;  // Empty: of no agent.
  bool HasSeveralHosts() const;
  // "rank 3", and its host behind it if there are several: "rank 3 (node2)".
  // "worker 3" of a worker without a rank.
  std::string NameOf(WorkerIdx worker) const;
  // The rank in the plan; absent of a worker without one. Before there is a
  // plan, the position among Workers().
  std::optional<Rank> RankOf(WorkerIdx worker) const;
  const std::vector<WorkerIdx>& members() const { return members_; }
  // The job waits for this agent, plans with it and ends if it gives up.
  bool TakesPart(int32_t agent_idx) const {
    return agents_[agent_idx].takes_part;
  }
  // Joined and with its data, whether it takes part or not.
  bool IsReady(int32_t agent_idx) const {
    return agents_[agent_idx].joined && agents_[agent_idx].data_ready;
  }
  // All workers of the agents that take part, but for those of devices that
  // are left out.
  std::vector<WorkerIdx> Workers() const;
  std::vector<int32_t> DevicesByAgent() const;
  // Devices of the agent that are not left out; for growth, those also whose
  // time is over.
  int32_t NumUsableDevices(int32_t agent_idx, bool for_growth) const;
  std::vector<WorkerIdx> LeftOutDevices() const { return failing_.left_out(); }

 private:
  struct Agent {
    std::string host;
    bool takes_part = true;
    bool joined = false;
    bool data_ready = false;
    int32_t num_devices = 0;  // Known once it has joined; then it stays.
    absl::Time heard;
    absl::Time disconnected = absl::InfiniteFuture();  // Never, or not now.
    std::vector<ProcessId> live_workers;               // At its last joining.
  };
  struct Worker {
    int32_t incarnation = 0;  // The newest process that was ordered.
    bool ordered = false;     // A process exists or is about to.
    bool joined = false;
    Generation cleared_for{};  // Idle and free of generations below.
    Generation given{};        // The last it was given.
    WorkerPhase phase = WorkerPhase::kIdle;
    absl::Time heard;
    // When it was told to clear and has not since; else never. A worker that
    // hangs in ending a generation may go on with its heartbeats.
    absl::Time told_to_clear = absl::InfiniteFuture();
    bool killed = false;  // Ordered; its death will be reported.
  };
  static bool IsHopeless(const absl::Status& status);

  void On(const AgentJoined& event);
  void On(const AgentDataReady& event);
  void On(const AgentHeard& event);
  void On(const AgentDisconnected& event);
  void On(const AgentGaveUp& event);
  void On(const PlanMade& event);
  void On(const PlanNeedsProfile& event);
  void On(const PlanRefused& event);
  void On(const ProfileMade& event);
  void On(const GrowthWeighed& event);
  void On(const WorkerJoined& event);
  void On(const WorkerHeard& event);
  void On(const WorkerCleared& event);
  void On(const WorkerDead& event);
  void On(const WorkerRunning& event);
  void On(const WorkerFailed& event);
  void On(const RanksHang& event);
  void On(const ReplicasDiffer& event);
  void On(const RollBack& event);
  void On(const ReplaceWorker& event);
  void On(const TrainingHopeless& event);
  void On(const PartWritten& event);
  void On(const StepCommitted& event);
  void On(const CommitFailed& event);
  void On(const RestoredEarlier& event);
  void On(const NothingToRestore& event);
  void On(const WorkerDone& event);
  void On(const WorkerPaused& event);
  void On(const StopRequested& event);
  void On(const Tick& event);

  // Processes of the agent that should run there and do not.
  std::vector<ProcessId> MissingFrom(const AgentJoined& event) const;
  void OnReturn(const AgentJoined& event);  // Of one that takes no part.
  bool AllAgentsReady() const;              // Those that take part.
  void BecomeComplete();  // All agents are there and have the data.
  void AdoptLiveWorkers();
  void StartMissing();     // Orders a process for every rank without one.
  void RaiseGeneration();  // After a failure: everyone starts again.
  void EndGeneration();    // The first half of that: everyone clears.
  void TellToClear();
  void BeginIfAllCleared();
  void FinishRejoining();
  void FinishIfDone();
  // Goes on once no rank trains any more and some have paused.
  void EndPauseIfAllStopped();
  // The generation that comes has a state to begin with.
  bool HasStateToKeep() const { return committed_step_ >= 0 || was_paused_; }
  void OnCommitAnswer(Generation generation, int64_t step);
  void GiveUpCommitsFor(const std::string& reason);
  void CheckSilence();
  void CheckAgents();
  // The coordinator was taken over from it, and all others have come.
  bool IsLastMissing(int32_t agent_idx) const;
  // A reason to leave the agent out of a job that has a plan; empty: none.
  std::string ReasonToLeaveOut(int32_t agent_idx) const;
  void Lose(int32_t agent_idx, const std::string& reason);
  void Forget(int32_t agent_idx);  // It takes no part, nor do its processes.
  void ForgetWorkers(int32_t agent_idx);
  // Orders the processes of workers that have no rank and will have one, or may
  // at any time, so that they start while the others train.
  void StartIdle();
  void Regroup();  // Plans anew for the agents that are ready.
  void ConsiderGrowth();
  std::vector<WorkerIdx> WorkersOf(int32_t agent_idx) const;
  bool IsUsable(WorkerIdx worker, bool for_growth) const;
  // Notes that the worker's device failed. True if it is left out from now on.
  bool LeavesOutDeviceOf(WorkerIdx worker);
  // Raises the generation, or plans anew if the worker's device is left out.
  // `counts`: within the budget of restarts.
  void RecoverFromDeath(const WorkerDead& event, bool counts);
  bool TakesBackDevices(const std::string& reason);  // False if there are none.
  // Weighs growth when devices that were left out may come back.
  void CheckDevices();
  void ReportMissingAgents();
  std::string NameOfAgent(int32_t agent_idx) const;  // "agent 1 of 4 (node2)".
  // Empty if there is none.
  std::string ReasonToKill(WorkerIdx worker_idx, const Worker& worker) const;
  // Whether the worker's agent can be told to kill it, and is itself heard of:
  // a host whose network is cut is no matter of its workers.
  bool CanTellAgentOf(WorkerIdx worker_idx) const;
  // Orders its death, unless that was done or cannot be.
  void Kill(WorkerIdx worker_idx, const std::string& reason);
  void HearAgent(int32_t agent_idx);
  void ForgiveOwnStall();
  // Reports that the generation failed, by what that worker did or met: `cause`
  // follows its name.
  void ReportFailed(WorkerIdx worker, const std::string& cause);
  // The same, then as Restart().
  void Recover(WorkerIdx worker, const std::string& cause);
  void Restart(const std::string& cause);     // Within the budget of restarts.
  bool MayRestart(const std::string& cause);  // Ends the job if not.
  void End(Verdict verdict, const std::string& reason);
  std::string ReasonOfEarlyStop() const;  // Where there is no checkpoint.
  int32_t NumMembers() const { return static_cast<int32_t>(members_.size()); }
  // Those that take part in what the generation is for.
  std::vector<WorkerIdx> ActiveWorkers() const;
  bool IsActive(WorkerIdx worker) const;
  // Null unless `process` is the newest of its worker.
  Worker* Find(const ProcessId& process);

  const JobStateOptions options_;
  absl::Time now_;
  std::vector<JobAction> actions_;  // Collected during a call.

  Phase phase_;
  Purpose purpose_ = Purpose::kTrain;
  Generation generation_;
  const Generation recovered_generation_;  // Of a coordinator before; 0: none.
  std::vector<WorkerIdx> members_;  // In the plan, by rank; empty: none yet.
  absl::Duration step_time_;        // The plan's, predicted.
  int64_t committed_step_;
  absl::Time phase_began_;
  absl::Time last_tick_;
  absl::Time last_missing_report_;
  int32_t restarts_ = 0;
  int32_t deaths_without_rank_ = 0;  // Since all ranks last ran.
  int64_t most_restored_ = 0;        // Steps, by any generation.
  bool has_trained_ = false;
  bool stop_requested_ = false;
  bool requeue_ = false;  // Once asked for, it stays.
  std::vector<Agent> agents_;
  FailingDevices failing_;
  // Which device's or host's failure ended the last generation is known.
  bool is_device_known_ = false;
  std::map<WorkerIdx, Worker> workers_;
  std::string last_commit_error_;
  // Commits without an answer, by generation and step. No generation begins
  // before the answers, since it restores the last commit.
  std::set<std::pair<Generation, int64_t>> committing_;
  bool gives_up_commits_ = false;  // Asked for; reset with the last answer.
  std::string refusal_;            // Why the hosts that are left cannot go on.
  bool plan_is_late_ = false;      // A host was lost since it was asked for.
  // Memory has the state of the generation that paused, and none has begun to
  // train since.
  bool was_paused_ = false;

  // The fields below belong to the current generation.
  std::set<WorkerIdx> running_;
  std::map<int64_t, std::set<WorkerIdx>> parts_;  // Written, by step.
  std::set<int64_t> failed_steps_;  // With a part or commit that failed.
  int64_t restored_steps_ = -1;
  std::set<WorkerIdx> done_;
  int64_t done_steps_ = -1;
  bool done_stopped_ = false;
  bool done_saved_ = false;
  bool weighs_growth_ = false;  // Asked for an answer, or answered.
  int32_t num_over_ = 0;  // FailingDevices::NumOver() when growth was weighed.
  bool pauses_ = false;   // Its workers were told to pause.
  std::map<WorkerIdx, bool> paused_;  // Whether it has kept its state.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_JOB_STATE_H_
