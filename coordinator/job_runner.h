// Between JobState and the world: messages become events (job_messages.cc),
// actions become messages, files and log records (job_runner.cc, of planning
// job_planning.cc, of the end job_end.cc). What several hosts share and must
// agree on is in job_hosts.cc, where their checkpoints lie in
// job_checkpoints.cc, how they are committed in job_commits.cc, answers to who
// looks at the job in job_visitors.cc, watching ranks that train in
// job_watching.cc. All on the server's thread but for the slow part of planning
// and what waits for disks and for other hosts (side_work.h).

#ifndef MILLRACE_COORDINATOR_JOB_RUNNER_H_
#define MILLRACE_COORDINATOR_JOB_RUNNER_H_

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/checkpoint_folders.h"
#include "coordinator/checkpoint_interval.h"
#include "coordinator/checkpoint_lock.h"
#include "coordinator/coordinator.h"
#include "coordinator/host_addresses.h"
#include "coordinator/host_load.h"
#include "coordinator/job_state.h"
#include "coordinator/objects/stored_files.h"
#include "coordinator/periodic_export.h"
#include "coordinator/plan_ahead.h"
#include "coordinator/planning.h"
#include "coordinator/profile_learning.h"
#include "coordinator/progress.h"
#include "coordinator/protocol/millrace.pb.h"
#include "coordinator/replica_plan.h"
#include "coordinator/resume.h"
#include "coordinator/run_files.h"
#include "coordinator/run_output.h"
#include "coordinator/server.h"
#include "coordinator/side_work.h"
#include "coordinator/watch/run_follower.h"
#include "coordinator/write_ahead_log.h"
#include "fault/bad_steps.h"
#include "fault/hang_watch.h"
#include "fault/loss_watch.h"
#include "fault/replicas.h"
#include "fault/slow_cause.h"
#include "fault/slow_rank.h"
#include "planner/job/job.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// Ends this coordinator's process at once: another one may decide now.
[[noreturn]] void StepDown(const std::string& reason);

class JobRunner {
 public:
  static absl::StatusOr<std::unique_ptr<JobRunner>> Create(
      const CoordinatorOptions& options);
  ~JobRunner();

  // Runs until the job has ended. Returns the exit code.
  int Run();

 private:
  // The process at the other end of a session.
  struct Peer {
    int32_t agent_idx = -1;            // Set for an agent.
    std::optional<ProcessId> process;  // Set for a worker.
    bool visits = false;
  };
  struct Part {
    std::string entry;
    WorkerIdx worker;
    uint64_t sequence;  // Acknowledged when committed, not before: a restarted
                        // coordinator needs it again.
    double waited_s;    // As in CheckpointPart.
    double written_s;
    bool failed = false;
  };
  // A commit that the state machine waits for, or has given up.
  struct Commit {
    Generation generation;
    int64_t step = 0;
    Layout layout;  // The generation's; there may be another plan by now.
    std::map<Rank, Part> parts;
    // Either it is given up, or its last write has begun: whatever comes first.
    enum class Fate { kOpen, kGivenUp, kCommits };
    std::atomic<Fate> fate = Fate::kOpen;
  };
  struct CommitOutcome {
    absl::Status status;
    std::string path;     // The step's folder.
    absl::Status logged;  // Whether the log has it on disk, if it succeeded.
    double seconds = 0;   // That it took.
  };

  JobRunner(const CoordinatorOptions& options, JobSpec job, std::string probe,
            std::unique_ptr<WriteAheadLog> log,
            std::unique_ptr<RunOutput> output);

  // Messages.
  void OnMessage(SessionId session, const protocol::ToCoordinator& message);
  void OnClosed(SessionId session);
  void OnStranger(const std::string& description);
  void OnHello(SessionId session, const protocol::Hello& hello);
  void OnAgentHello(SessionId session, const protocol::AgentHello& greeting);
  // Why a process that says to belong to that run is refused; empty if it is
  // this one.
  std::string StrangerRefusal(const std::string& host,
                              const std::string& run_directory) const;
  // Sends the reason to a process that takes no part, which then ends.
  void Refuse(SessionId session, absl::string_view reason);
  // The index of an agent: the launcher's, or for an agent that no launcher has
  // numbered the one it was given, or the next free one. An error says why it
  // may not take part: it is of an earlier job, its index is none of the job's,
  // all have come, or its host has an agent.
  absl::StatusOr<int32_t> IndexFor(const protocol::AgentHello& hello);
  bool IsConnected(int32_t agent_idx) const;
  // Why an agent cannot take part, empty if it can: another program, other
  // data. Compares with agent 0, or with the first that has data.
  std::string BuildRefusal(const protocol::AgentHello& hello) const;
  std::string DataRefusal(const protocol::AgentHello& hello) const;
  bool OnAgentData(int32_t agent_idx);  // False if it was refused.
  // Waits for agent 0, which tells people why the job has ended.
  void OnGaveUp(const AgentGaveUp& event);
  void OnAgentMessage(int32_t agent_idx,
                      const protocol::ToCoordinator& message);
  void OnWorkerMessage(SessionId session, const ProcessId& process,
                       const protocol::ToCoordinator& message);
  void OnRendezvous(SessionId session, const protocol::ToCoordinator& message);
  // Takes a rank's report of a step of the current generation: how the step
  // went on that rank.
  void OnStepOfRank(Rank rank, int64_t generation,
                    const protocol::StepDone& step);
  // Records a step of the job by its first report, since all ranks report the
  // same of it. Reports of a generation that has ended count too: the next one
  // may go on from the state after them.
  void RecordStep(int64_t generation, const protocol::StepDone& step);
  // What ranks say of themselves while they train, watched for hangs, slow
  // ranks and wrong numbers; job_watching.cc.
  void BeginWatching();
  void OnProgress(Rank rank, const protocol::ToCoordinator& message);
  void CheckHang();
  void OnStateHash(Rank rank, const protocol::ToCoordinator& message);
  // The rank's part of the checkpoint is not the state that it had hashed.
  void OnMemoryChanged(WorkerIdx worker, Rank rank, int64_t step);
  // To the newest state from before the last comparison that agreed.
  void GoBack(ReplicasDiffer event);
  static std::string BackToText(int64_t trusted_step);  // For people.
  void OnBadStep(Rank rank, const protocol::ToCoordinator& message);
  std::string TextOf(const BadStepVerdict& verdict) const;
  void WatchCompute(Rank rank, const protocol::StepDone& step);
  void WatchLoss(int64_t step, double loss);
  std::string NameOf(Rank rank) const;
  // Who takes no part; job_visitors.cc.
  void OnVisitorMessage(SessionId session,
                        const protocol::ToCoordinator& message);
  void AnswerStatus(SessionId session);
  void AskForLog(SessionId session, const protocol::LogRequest& request);
  void OnLogText(const protocol::LogText& text);
  void ForgetVisitor(SessionId session);
  void OnCheckpointPart(WorkerIdx worker, Rank rank,
                        const protocol::ToCoordinator& message);
  void OnProfile(const protocol::ToCoordinator& message);
  void OnFinished(WorkerIdx worker, Rank rank,
                  const protocol::ToCoordinator& message);
  void Acknowledge(SessionId session, uint64_t sequence);

  // Events in, actions out.
  void Handle(const JobEvent& event);
  void Do(const MakePlan&);
  void PlanForDevicesThere();
  // Spare hosts; job_spares.cc. A job that has no plan yet is refused where
  // they could not take the place of others.
  absl::Status CheckSpareHosts() const;
  // The plan stays, since spare hosts make up for those that are lost.
  bool SpareTakesPlace(const DeviceFacts& devices) const;
  std::optional<std::vector<WorkerIdx>> PlacesAmong(
      const std::vector<WorkerIdx>& workers) const;
  void OnSparePlaces();
  // Says that none was left, so that `plan` is for fewer; else empty.
  std::string SpareDecision(const DeviceFacts& devices, const Plan& plan) const;
  void Do(const AbandonPlan&);
  void Do(const WeighGrowth& action);
  void Do(const LeaveOut& action);
  void Do(const StartWorkerProcess& action);
  void Do(const KillWorkerProcess& action);
  void Do(const RecordGeneration& action);
  void Do(const AbortOlder& action);
  void Do(const BeginGeneration& action);
  // Commits, one after another; job_commits.cc.
  void Do(const CommitStep& action);
  void Do(const GiveUpCommits& action);
  SideWork::Work BeginCommit(const std::shared_ptr<Commit>& commit,
                             const absl::Status& locked);
  void OnCommitEnd(Commit& commit, const CommitOutcome& outcome);
  // How often workers save (checkpoint_interval.h), what they are told when
  // they begin, and whether it is changed since a checkpoint has cost something
  // else than was thought.
  IntervalChoice ChooseInterval() const;
  int64_t IntervalToBegin();
  void ReconsiderInterval();
  void ReportInterval(const IntervalChoice& choice, int64_t from);
  static bool GiveUp(Commit& commit);  // False: it is too late.
  // The step will not be committed: its ranks need not tell of their parts
  // again, and what lies on disk of the steps before it is removed.
  void AbandonParts(int64_t step);
  void FailCommit(const CommitStep& action, const std::string& reason);
  void Do(const TellWorkersToStop&);
  void Do(const TellWorkersToPause&);
  void Do(const Report& action);
  void Do(const EndJob& action);
  void OnTick();

  // The slow part of planning, on a thread of its own, and what follows.
  struct PlanOutcome {
    absl::Status status;  // NotFound: needs a profile.
    DeviceFacts devices;
    std::shared_ptr<const Plan> plan;  // Null: that of before stays.
    HardwareProfile profile;
    ResumeChoice resume;
    std::string machine;
    CheckpointFolders folders;
  };
  PlanOutcome MakePlanNow(const JobSpec& job, const DeviceFacts& devices,
                          const std::optional<HardwareProfile>& measured,
                          const CheckpointFolders& folders,
                          const std::stop_token& stop) const;
  // A plan of a job that has begun, for the hosts that it has now; `made`,
  // where it has one for these already.
  PlanOutcome PlanAgain(const JobSpec& job, const DeviceFacts& devices,
                        std::shared_ptr<const Plan> made,
                        const std::stop_token& stop) const;
  // Makes a plan and writes it into the run directory.
  absl::StatusOr<std::shared_ptr<const Plan>> PlanAndWrite(
      const JobSpec& job, const DeviceFacts& devices,
      const HardwareProfile& profile, const std::stop_token& stop) const;
  // Calls `plan` on the planning thread. Stops what that thread does, without
  // waiting for its end.
  void BeginPlanning(std::function<void(std::stop_token)> plan);
  // Stops every search under way: nobody wants its plan.
  void AbandonPlans();
  JobSpec JobToPlan() const;
  // Begins to plan for the loss of any one host, where it does not matter
  // which.
  void PlanForOneHostFewer();
  absl::StatusOr<ResumeChoice> ChooseStart(FileSystem& files) const;
  void OnPlan(const PlanOutcome& outcome);
  void OnGrowthPlan(Generation generation, const DeviceFacts& devices,
                    const absl::StatusOr<std::shared_ptr<const Plan>>& plan);
  // Why hosts that come back cannot be taken in; empty if they can.
  std::string ReasonNotToGrow() const;
  // Keeps what a measured step of all ranks says of the profile, which learns
  // from it when the job has ended well. Failing that hurts no training.
  void ObserveStep(int64_t generation, int64_t step, const Timeline& timeline,
                   double others_share);
  void LearnProfile(const EndJob& action);
  // Exports a checkpoint that was committed, if the job asks for it, and says
  // how that went. A job that finishes waits for its exports.
  void ExportStep(int64_t step, const std::string& checkpoint);
  void OnExported(const ExportOutcome& outcome);
  // The oldest step whose export is not done, so that its checkpoint stays.
  std::optional<int64_t> OldestToExport() const;
  // Why the same job, started again, would not go on where this one stopped;
  // empty if it would.
  std::string ReasonNotToRequeue() const;
  void End(const EndJob& action);
  // Launchers kill agents soon after they have passed a Ctrl-C on: mpirun a
  // second later, whatever the job is at. From the request to stop on, this
  // process outlives its agent until it has given the folder of checkpoints
  // back. Otherwise the next start would wait until a lease runs out.
  void OutliveAgent();
  // Ends this process, but not the job, once the agent it outlives is gone:
  // commits nothing more, and gives the folder back.
  void LeaveWithAgent();
  void PrintSummary(const EndJob& action);

  // A generation asks disks and other hosts for this before it begins;
  // job_restore.cc.
  struct Preparation {
    std::optional<FolderSearch> search;  // Where no folder is shared.
    std::optional<DamagedRestore> damaged;
    std::string resume_path;  // Its step is not known; empty: it is.
  };
  struct Prepared {
    absl::StatusOr<CheckpointFolders> folders = CheckpointFolders();
    std::optional<absl::StatusOr<ResumeChoice>> choice;  // For `damaged`.
    std::optional<int64_t> resume_step;
  };
  Preparation WhatToPrepare(const BeginGeneration& action);
  Prepared Prepare(const Preparation& what) const;
  void BeginPrepared(const BeginGeneration& action, Prepared prepared);
  // Tells the members to begin.
  void SendBegin(const BeginGeneration& action,
                 protocol::FromCoordinator* message);
  // The checkpoint that a generation restores, empty for the seed. Records and
  // reports what is passed over; an error ends the job.
  absl::StatusOr<std::string> RestorePath(int64_t committed_step,
                                          const Prepared& prepared);
  // From where a generation has its state: memory if that has a newer step than
  // the disk, or the same one. Fills what the message says of it.
  absl::Status AddRestore(int64_t committed_step, const Prepared& prepared,
                          protocol::StartGeneration* start);
  // Copies of the state in memory; job_replicas.cc.
  absl::StatusOr<ReplicaPlan> ReplicaPlanOf(
      const Layout& layout, double step_s,
      const std::vector<std::string>& hosts, int64_t memory_bytes,
      const std::optional<SnapshotPlan>& snapshots) const;
  // What may be lost at once with each member: its host, or its agent where all
  // are on one host.
  std::vector<std::string> FailureDomains(
      const std::vector<WorkerIdx>& members) const;
  std::vector<HeldReplica> HeldReplicas() const;  // Those that are trusted.
  bool IsDistrusted(const ReplicaSet& set) const;
  // From now on, copies of the generation are not trusted, but for those up to
  // the step after which its replicas last agreed, if that is before the given
  // step. Returns that step, or below zero.
  int64_t DistrustMemory(Generation generation, int64_t before);
  // Where workers hold the same part with other bits: says so, and distrusts
  // what the generation that made them holds.
  void CompareHeldReplicas();
  // The step of what a generation may restore; 0 for the seed.
  int64_t StepOnDisk(const std::string& path, const Prepared& prepared) const;
  std::optional<ReplicaChoice> ChooseFromMemory(int64_t least_step) const;
  // Says aloud why memory has no newer state than that step.
  void ReportIncomplete(int64_t step, const std::string& instead);
  void AddReplicas(protocol::StartGeneration* start);
  // The addresses of each rank's partners, by rank. Empty: none is sent a copy.
  std::vector<std::vector<std::string>> PartnerAddresses() const;
  void NoteSource(const std::string& source, int64_t step);
  void ReportSource(int64_t step);
  void AddStart(const protocol::GenerationRunning& running);
  void OnReplicaStep(Rank rank, const protocol::StepDone& step);
  void ReportSkipped(const ResumeChoice& choice);
  // Copies that this process has passed over since it last asked.
  static std::vector<std::string> TakeDamagedCopies(
      const CheckpointFolders& folders);
  // Says each of them once.
  void ReportDamagedCopies(const std::vector<std::string>& lines);
  void ReportMetricsWarnings();

  // Those of the agents that take part; with `all_ready`, of those too that
  // might.
  DeviceFacts Devices(bool all_ready = false) const;
  void SendToAgent(int32_t agent_idx, const protocol::FromCoordinator& message);
  // Tells all agents whether workers have standby processes from now on, unless
  // none have and none shall.
  void TellOfStandbys(bool keep);
  void SendToWorkers(const protocol::FromCoordinator& message);
  std::string CheckpointDirectory() const;
  // Where other hosts reach the agent's, "10.0.0.1".
  std::string AddressOfHost(int32_t agent_idx) const;
  // The address from which the coordinator sees it.
  std::string AddressSeen(int32_t agent_idx) const;
  // The agents that keep the coordinator's log; job_succession.cc. They are
  // chosen when all have come, before anything is decided that must not be
  // lost, and met again by a later coordinator process.
  absl::Status ChooseKeepers();
  static absl::Status RejoinKeepers(const CoordinatorOptions& options,
                                    WriteAheadLog* log);
  // Where the coordinator may be in future.
  void TellCoordinators(SessionId session);
  void ReportTakeover();
  std::string CommittedPath() const;  // On this host.
  void CopyRunFiles();                // To keepers that do not see them.
  // Files by which agents find out which folders they share with this host.
  void WriteProbes() const;
  void RemoveProbes() const;
  // They stay while an agent may come that has not looked.
  void KeepProbesWhileNeeded();
  bool NeedsCheckpoints() const;
  bool AllSeeCheckpoints() const;
  bool CanCheckpoint() const;  // In a shared folder, or in hosts' own.
  protocol::FileHost FileHostOf(int32_t agent_idx) const;
  // How to find the folders over which checkpoints are spread; nothing if all
  // hosts see one. The search waits for answers of the hosts that take part.
  std::optional<FolderSearch> SearchForFolders() const;
  static absl::StatusOr<CheckpointFolders> FindFolders(
      const FolderSearch& search);
  // The same search for a coordinator that came back to a job that trains.
  SideWork::Work FindFoldersAgain();
  // By which checkpoints are found, read, committed and removed.
  std::shared_ptr<FileSystem> FilesOf(const CheckpointFolders& folders) const;
  std::shared_ptr<FileSystem> CheckpointFiles() const {
    return FilesOf(checkpoint_folders_);
  }
  // Tells workers of a generation where checkpoints go. An error says that
  // there is no place for them.
  void AddCheckpointFolders(const absl::Status& found,
                            protocol::StartGeneration* start);
  // Fails if workers of some hosts would listen at IPv4 addresses and others at
  // IPv6 ones, which cannot connect to each other.
  // With `all_ready`, also of agents that might take part.
  absl::Status CheckOneAddressFamily(bool all_ready = false) const;
  // Data that one host has (data.from): an agent that has them gives them to
  // those that do not, once one does.
  void OnDataOffer(int32_t agent_idx);
  void SendOffer(int32_t agent_idx);
  // Once all agents have come: how many were told to fetch data.
  void PrintFetching();
  // Why no agent of the job can have the data; empty if one can, or may come.
  std::string SourceRefusal() const;
  // Locks the folder of checkpoints, before anything is read or written there,
  // beside the server's thread, which waits for no file system and no store.
  // Then calls `then` with the outcome, at once where the folder is locked
  // already: FailedPrecondition if another job has the folder. While it has,
  // tries again for as long as `waits`, which may be null, returns true.
  using Locked = std::function<void(const absl::Status&)>;
  void LockCheckpoints(std::function<bool()> waits, Locked then);
  // A disk that does not take what must be durable ends the coordinator, unless
  // the reserve suffices.
  void MustSucceed(absl::FunctionRef<absl::Status()> write);
  // One that does not take other records is said once.
  void ShouldSucceed(const absl::Status& status);
  void Alarm(const absl::Status& status, absl::string_view what);

  const CoordinatorOptions options_;
  const JobSpec job_;
  const std::string job_yaml_;
  const std::string probe_;  // Names and content of the probes' files.
  // Checkpoints that are not spread over hosts.
  const std::shared_ptr<StoredFiles> stored_files_;
  std::unique_ptr<WriteAheadLog> log_;
  std::unique_ptr<RunOutput> output_;
  std::shared_ptr<CheckpointLock> checkpoint_lock_;
  bool alarmed_ = false;  // That records are lost.
  struct RunCopy {
    SessionId session;
    std::unique_ptr<RunFiles> files;
  };
  std::map<int32_t, RunCopy> run_copies_;  // By agent.
  absl::Time copied_ = absl::InfinitePast();
  std::vector<std::shared_ptr<Commit>> commits_;  // Without an answer.
  // The folders above that of checkpoints; this process has committed one.
  bool above_is_durable_ = false;
  // How long commits wait for an earlier coordinator on another host, which may
  // hold the folder of checkpoints until it ends.
  absl::Time awaited_until_ = absl::InfinitePast();
  // Reports of steps to be acknowledged once copies have them: those since the
  // last copies were sent, and those before.
  std::vector<std::pair<SessionId, uint64_t>> uncopied_;
  std::vector<std::pair<SessionId, uint64_t>> copying_;
  std::optional<JobState> state_;
  std::unique_ptr<Server> server_;
  std::thread planning_;
  std::stop_source planning_stop_;  // Of the search on that thread.
  std::deque<JobEvent> events_;
  bool handling_ = false;
  std::optional<PlanRecord> plan_;
  bool may_have_standbys_ = false;  // Some agent was once told to keep them.
  std::optional<HardwareProfile> measured_profile_;  // By this job's workers.
  std::optional<HardwareProfile> profile_;  // With which plan_ was made.
  MadePlans made_plans_;
  PlanAhead plan_ahead_;
  std::optional<Progress> progress_;
  std::optional<int> exit_code_;
  std::string last_message_;  // For agents that come back after the end.
  bool outlives_agent_ = false;

  std::map<SessionId, Peer> peers_;
  std::optional<RunFollower> follower_;  // Since the first visitor's question.
  std::map<int32_t, SessionId> log_readers_;  // By the request's number.
  int32_t last_log_request_ = 0;
  std::map<int32_t, SessionId> agent_sessions_;
  std::map<int32_t, SessionRoute> agent_routes_;  // Of those in agents_.
  // The address family of the first worker that this process has started;
  // nothing before that.
  std::optional<AddressFamily> workers_family_;
  std::map<WorkerIdx, SessionId> worker_sessions_;
  std::map<int32_t, protocol::AgentHello> agents_;  // Those with the job.
  struct Newcomer {
    uint64_t instance;
    std::string host;
  };
  std::map<int32_t, Newcomer> newcomers_;  // Numbered here.
  std::set<int32_t> fetching_;  // Agents of which PrintFetching() tells next.
  std::vector<AgentGaveUp> gave_up_early_;     // Before agent 0 came.
  CheckpointFolders checkpoint_folders_;       // Empty where all see one.
  std::set<std::string> damaged_copies_;       // Those that have been told of.
  std::shared_ptr<SpreadFiles> export_files_;  // Of exporter_.

  // The fields below belong to the current generation.
  std::map<std::string, std::string> rendezvous_;
  std::map<std::string, std::set<SessionId>> rendezvous_waiters_;
  std::map<int64_t, std::map<Rank, Part>> parts_;
  std::set<int64_t> abandoned_steps_;  // Their checkpoints have failed.
  std::string commit_detail_;  // What the newest committed checkpoint cost.
  struct MeasuredRank {
    RankTimeline timeline;
    RankLoad load;
  };
  std::map<int64_t, std::map<Rank, MeasuredRank>> timelines_;
  std::map<Rank, uint64_t> parameter_hashes_;

  Generation watched_{};  // The fields below are for this one.
  HangWatch hang_watch_;
  SlowRankWatch slow_ranks_;
  BadSteps bad_steps_;
  LossWatch losses_;
  // By step and whether they are of gathered parameters.
  std::map<std::pair<int64_t, bool>, std::map<Rank, std::vector<uint64_t>>>
      state_hashes_;
  // The last comparison of all replicas that agreed; step 0: none has.
  ReplicaSet agreed_;
  // Steps of a generation after each of which replicas are compared, as long as
  // some have differed lately; and how many comparisons in a row have agreed.
  int32_t compared_steps_ = 0;
  int32_t num_agreed_ = 0;
  std::map<Rank, std::deque<HostSign>> hosts_;  // The newest is last.

  absl::Time last_tick_;
  std::set<WorkerIdx> replaced_;  // For being slow; once each.
  // By worker, the copies that its newest process holds.
  std::map<WorkerIdx, protocol::HeldReplicas> replicas_;
  std::optional<ReplicaPlan> replica_plan_;
  // The set that the current generation restores, until it trains.
  std::optional<ReplicaSet> restored_set_;
  std::map<ReplicaSet, int> replica_tries_;  // Without training after them.
  std::set<ReplicaSet> refused_replicas_;
  std::string source_;    // Of the generation's state; empty: not a recovery.
  double restore_s_ = 0;  // On the slowest rank.
  // The parts of a start, from data to restoring, each on its slowest rank.
  std::vector<std::pair<std::string, double>> start_parts_;

  std::optional<StepObserver> observer_;  // Since the first measured step.
  std::optional<Layout> observed_layout_;

  bool began_training_ = false;
  std::optional<double> recovery_began_s_;
  // Predicted, with one host fewer than train now; absent: not known.
  std::optional<double> fewer_hosts_step_s_;
  bool recovers_from_pause_ = false;  // Not from a failure.
  double last_recovery_s_ = 0;
  int32_t num_failures_ = 0;        // After which training went on.
  CheckpointCost checkpoint_cost_;  // Of the newest; measured or not.
  int64_t interval_steps_ = 0;      // Of checkpoints; 0: none, not known.
  int64_t interval_from_ = 0;       // The step from which it holds.
  // Tells the workers of this generation of it, if it changed since they began.
  std::optional<protocol::FromCoordinator> interval_change_;
  bool verify_before_restore_ = false;  // A checkpoint was found damaged.
  double final_loss_ = 0;
  absl::Time time_written_ = absl::InfinitePast();  // time.json, at a step.
  int64_t device_bytes_ = 0;  // The most that any rank used.

  std::optional<int64_t> resume_step_;  // Of plan_->resume_path, once read.
  bool is_preparing_ = false;           // The current generation.
  bool stops_when_begun_ = false;       // Its members are to stop then.

  int num_exports_ = 0;  // Exports whose outcome is not known yet.
  std::optional<EndJob> end_after_exports_;
  // Last: their threads call this.
  std::unique_ptr<PeriodicExport> exporter_;
  std::stop_source lock_stop_;             // Of who waits for the lock.
  std::unique_ptr<SideWork> folder_work_;  // Its lock, and the probes.
  std::unique_ptr<SideWork> committing_;
  std::unique_ptr<SideWork> preparing_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_JOB_RUNNER_H_
