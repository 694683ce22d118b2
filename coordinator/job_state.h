// The job's state machine: is the job where it should be, and if not, what has
// to happen? Pure: events and the time go in, actions come out. The coordinator
// (coordinator.h) turns messages into events and actions into messages, and
// tests/sim runs this same class on virtual time. Agents, plan and generations
// are in job_state.cc, workers in job_state_workers.cc, checkpoints and the end
// in job_state_end.cc.
//
//   waiting for agents -> planning (-> profiling -> planning) -> starting
//   generation g -> training -> finished
//
// A death or failure raises the generation: every worker stops, reports ready,
// and all start again from the last committed checkpoint. Messages of an older
// generation, or of an earlier process of a rank, are ignored.

#ifndef MILLRACE_COORDINATOR_JOB_STATE_H_
#define MILLRACE_COORDINATOR_JOB_STATE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"

namespace millrace {

// Events. ---------------------------------------------------------------------

struct RankProcess {
  Rank rank;
  // The generation that the process was started for: a later process of the
  // rank has a higher one, also across restarts of the coordinator.
  int32_t incarnation;
  friend auto operator<=>(const RankProcess&, const RankProcess&) = default;
};

struct AgentJoined {  // Also after a reconnection.
  int32_t agent_idx;
  std::string host;
  int32_t num_devices;
  bool data_ready;
  std::vector<RankProcess> live_workers;
};
struct AgentDataReady {
  int32_t agent_idx;
};
struct AgentHeard {
  int32_t agent_idx;
};
struct AgentGaveUp {
  int32_t agent_idx;
  std::string reason;
  bool bad_input;
};
struct PlanMade {
  int32_t num_ranks;
};
struct PlanNeedsProfile {};
struct PlanRefused {
  std::string reason;
};
struct ProfileMade {
  Generation generation;
};
enum class WorkerPhase { kIdle, kStarting, kRunning };
struct WorkerJoined {  // Also after a reconnection.
  RankProcess process;
  Generation generation;  // The last it was given.
  WorkerPhase phase;
};
struct WorkerHeard {
  RankProcess process;
};
struct WorkerCleared {  // Holds nothing of an older generation any more.
  RankProcess process;
  Generation generation;
};
struct WorkerDead {
  RankProcess process;
  std::string detail;
};
struct WorkerRunning {  // State restored; steps follow.
  Rank rank;
  Generation generation;
  int64_t completed_steps;
};
struct WorkerFailed {
  Rank rank;
  Generation generation;
  absl::Status status;
};
struct PartWritten {
  Rank rank;
  Generation generation;
  int64_t step;
  bool ok;
};
// Answers to CommitStep.
struct StepCommitted {
  int64_t step;
};
struct CommitFailed {
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
  Rank rank;
  Generation generation;
  int64_t steps;
  bool stopped;
  bool saved;  // A checkpoint of these steps was written, or restored.
};
struct StopRequested {
  bool now;
  bool requeue = false;  // The job is to be started again.
};
struct Tick {};

using JobEvent =
    std::variant<AgentJoined, AgentDataReady, AgentHeard, AgentGaveUp, PlanMade,
                 PlanNeedsProfile, PlanRefused, ProfileMade, WorkerJoined,
                 WorkerHeard, WorkerCleared, WorkerDead, WorkerRunning,
                 WorkerFailed, PartWritten, StepCommitted, CommitFailed,
                 RestoredEarlier, NothingToRestore, WorkerDone, StopRequested,
                 Tick>;

// Actions. --------------------------------------------------------------------

// Answer with PlanMade, PlanNeedsProfile or PlanRefused.
struct MakePlan {};
struct StartWorkerProcess {
  int32_t agent_idx;
  RankProcess process;
};
struct KillWorkerProcess {
  int32_t agent_idx;
  RankProcess process;
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
  int32_t num_ranks;     // Ranks [0, num_ranks) take part.
  int64_t restore_step;  // The run's last commit; -1: its beginning.
};
// All parts of the step are written. Answer with StepCommitted or CommitFailed.
struct CommitStep {
  Generation generation;
  int64_t step;
};
struct TellWorkersToStop {};
// For the events file and the people who read it; see docs/run_directory.md.
struct Report {
  std::string event;
  int64_t step = -1;
  int32_t rank = -1;
  std::string detail;
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

using JobAction = std::variant<MakePlan, StartWorkerProcess, KillWorkerProcess,
                               RecordGeneration, AbortOlder, BeginGeneration,
                               CommitStep, TellWorkersToStop, Report, EndJob>;

// The machine. ----------------------------------------------------------------

struct JobStateOptions {
  int32_t num_agents;
  bool profile_only = false;  // End once a profile is made.
  absl::Duration heartbeat_timeout = absl::Seconds(10);
  // How long workers may take to report cleared after AbortOlder.
  absl::Duration clear_timeout = absl::Seconds(20);
  // How long agents may take to join, and to come back after a lost connection
  // or a restart of the coordinator.
  absl::Duration join_timeout = absl::Seconds(60);
  // How long they may take to join for the first time, if that is longer.
  absl::Duration first_join_timeout = absl::ZeroDuration();
  int32_t max_restarts = 100;
  // By agent, as far as the launcher says so.
  std::vector<std::string> hosts;
};

// The state that a restarted coordinator reads from its log.
struct RecoveredJob {
  Generation generation{};
  int32_t num_ranks = 0;        // In the plan; 0: there was none.
  int64_t committed_step = -1;  // In this run; -1: none.
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
  int32_t AgentOf(Rank rank) const;  // -1: no agent has that rank.
  // Of its agent; empty if no agent has that rank.
  std::string HostOf(Rank rank) const;
  bool HasSeveralHosts() const;
  // "rank 3", and its host behind it if there are several: "rank 3 (node2)".
  std::string NameOf(Rank rank) const;

 private:
  struct Agent {
    std::string host;
    bool joined = false;
    bool data_ready = false;
    int32_t num_devices = 0;
    absl::Time heard;
    std::vector<RankProcess> live_workers;  // At its last joining.
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
  void On(const AgentGaveUp& event);
  void On(const PlanMade& event);
  void On(const PlanNeedsProfile& event);
  void On(const PlanRefused& event);
  void On(const ProfileMade& event);
  void On(const WorkerJoined& event);
  void On(const WorkerHeard& event);
  void On(const WorkerCleared& event);
  void On(const WorkerDead& event);
  void On(const WorkerRunning& event);
  void On(const WorkerFailed& event);
  void On(const PartWritten& event);
  void On(const StepCommitted& event);
  void On(const CommitFailed& event);
  void On(const RestoredEarlier& event);
  void On(const NothingToRestore& event);
  void On(const WorkerDone& event);
  void On(const StopRequested& event);
  void On(const Tick& event);

  bool AllAgentsReady() const;
  void BecomeComplete();   // All agents are there and have the data.
  void StartMissing();     // Orders a process for every rank without one.
  void RaiseGeneration();  // After a failure: everyone starts again.
  void TellToClear();
  void BeginIfAllCleared();
  void FinishRejoining();
  void FinishIfDone();
  void CheckSilence();
  void ReportMissingAgents();
  std::string NameOfAgent(int32_t agent_idx) const;  // "agent 1 of 4 (node2)".
  // Empty if there is none.
  std::string ReasonToKill(const Worker& worker) const;
  void ForgiveOwnStall();
  // Reports that the generation failed, by what that rank did or met: `cause`
  // follows its name. Then as Restart().
  void Recover(Rank rank, const std::string& cause);
  void Restart(const std::string& cause);  // Within the budget of restarts.
  void End(Verdict verdict, const std::string& reason);
  int32_t NumActiveRanks() const;
  // Null unless `process` is the newest of its rank.
  Worker* Find(const RankProcess& process);

  const JobStateOptions options_;
  absl::Time now_;
  std::vector<JobAction> actions_;  // Collected during a call.

  Phase phase_;
  Purpose purpose_ = Purpose::kTrain;
  Generation generation_;
  int32_t num_ranks_;  // In the plan.
  int64_t committed_step_;
  absl::Time phase_began_;
  absl::Time last_tick_;
  absl::Time last_missing_report_;
  int32_t restarts_ = 0;
  bool stop_requested_ = false;
  bool requeue_ = false;  // Once asked for, it stays.
  std::vector<Agent> agents_;
  std::map<Rank, Worker> workers_;
  std::string last_commit_error_;

  // The fields below belong to the current generation.
  std::set<Rank> running_;
  std::map<int64_t, std::set<Rank>> parts_;  // Written, by step.
  std::set<int64_t> failed_steps_;  // With a part or commit that failed.
  int64_t restored_steps_ = -1;
  std::set<Rank> done_;
  int64_t done_steps_ = -1;
  bool done_stopped_ = false;
  bool done_saved_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_JOB_STATE_H_
