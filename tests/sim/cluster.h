// A whole job on virtual time: the real JobState, with agents, workers, network
// and disk replaced by a seeded model that delays, repeats and kills. Broken
// invariants are collected, not thrown, so that a test can print them with the
// seed that replays them.

#ifndef MILLRACE_TESTS_SIM_CLUSTER_H_
#define MILLRACE_TESTS_SIM_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/job_state.h"
#include "fault/replicas.h"

namespace millrace {

struct ClusterOptions {
  uint64_t seed = 0;
  int32_t num_agents = 2;
  int32_t devices_per_agent = 2;
  int64_t num_steps = 40;
  int64_t checkpoint_interval = 7;
  bool checkpoint_at_end = true;
  bool needs_profile = false;
  int32_t num_worker_kills = 0;  // At random moments.
  // How often the process of one worker dies, soon after it has come to train,
  // as of a broken device; and how long devices are left out that do so.
  int32_t num_flaps = 0;
  double leave_out_s = 0;
  int32_t num_worker_freezes = 0;  // Alive but silent, until killed.
  int32_t num_worker_hangs = 0;    // Heard of, but never clear, until killed.
  // Ranks that stop in the middle of a step, heartbeats going on; replicas that
  // are found to differ; steps that are rolled back.
  int32_t num_rank_hangs = 0;
  int32_t num_wrong_replicas = 0;
  int32_t num_roll_backs = 0;
  // A bit of a rank's state flips, and soon after another process is killed.
  // With them, ranks hold the same state and keep it when a generation fails.
  int32_t num_flips_and_kills = 0;
  int32_t num_coordinator_kills = 0;  // It comes back from its log.
  // The coordinator's host ends or is cut off, and another one goes on with the
  // log (succession_simulation_test.cc has how it gets that).
  int32_t num_takeovers = 0;
  // Hosts but the coordinator's that end with all their processes; and hosts
  // whose network is cut. They come back after up to so many seconds, or never.
  int32_t num_host_losses = 0;
  int32_t num_host_cuts = 0;
  double most_absent_s = 30;
  double return_probability = 0.7;
  // Hosts on which no rank is while the others suffice.
  int32_t spare_hosts = 0;
  // A plan uses a multiple of so many devices, and needs so many at least.
  int32_t rank_multiple = 1;
  int32_t least_ranks = 1;
  double duplicate_probability = 0.1;
  // Steps between copies of the state in memory; 0: none.
  int64_t replica_interval = 0;
  int32_t replica_partners = 1;  // Of each rank, for these copies.
  // The probability that a pausing rank has no memory for its state.
  double unkept_probability = 0;
  // A host and that of its ranks' first partners that end at one moment.
  // Neither is the coordinator's.
  int32_t num_pair_losses = 0;
  // How long a commit takes at most until its last write, which cannot be taken
  // back, and that write.
  double most_commit_s = 0;
  double most_last_write_s = 0;
  double stop_after_s = -1;  // A graceful stop is asked for; -1: never.
  bool requeue = false;      // With it: the job is to be started again.
  int32_t max_restarts = 1000;
  // A step with all ranks. With fewer it takes longer, since the batch is kept,
  // and by this factor more, since fewer layouts suit them.
  double step_s = 0.1;
  // Workers that are told to end a step run it to its end, as GPUs do, and take
  // so long afterwards; negative: they end it at once.
  double end_s = -1;
  double fewer_ranks_factor = 1;
  // At most, from an order to start a process until it joins, and from then
  // until it has its state and may train.
  double most_start_s = 0.5;
  double most_restore_s = 0.3;
  double plan_s = 0.3;
  double known_plan_s = 0.3;  // Where one was made for as many ranks before.
  double most_copy_s = 0.4;   // Until a copy has come to a partner.
  // One of all workers dies after so long on average, and so does one of all
  // hosts but the coordinator's, again and again; 0: never.
  double worker_failure_s = 0;
  double host_failure_s = 0;
  double heartbeat_s = 0.2;
  double time_limit_s = 3600;
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);

  // Until the job ends or virtual time is up.
  void Run();

  const std::optional<EndJob>& end() const { return end_; }
  const std::vector<std::string>& violations() const { return violations_; }
  int64_t num_generations() const { return ToInt(log_.generation); }
  int64_t num_commits() const { return static_cast<int64_t>(commits_.size()); }
  int32_t num_stuck() const { return num_stuck_; }
  int32_t num_hung() const { return num_hung_; }
  // Generations that took their state from memory.
  int32_t num_from_memory() const { return num_from_memory_; }
  int32_t num_differing() const { return num_differing_; }
  // Those that went back to the disk though memory had had a newer set.
  int32_t num_back_to_disk() const { return num_back_to_disk_; }
  // Times that devices were left out, or taken back for want of others.
  int32_t num_left_out() const { return num_left_out_; }
  int32_t num_taken_back() const { return num_taken_back_; }
  // Pauses for hosts that came back.
  int32_t num_pauses() const { return num_pauses_; }
  // Losses of pairs of hosts while memory had a newer set than the disk.
  int32_t num_pair_losses() const { return num_pair_losses_; }
  // Ranks of the last generation that began.
  int32_t num_ranks() const {
    return generation_sizes_.empty() ? 0 : generation_sizes_.rbegin()->second;
  }
  int32_t num_given_up() const { return num_given_up_; }  // Commits.
  // The longest time from the last death or failure that raised a generation to
  // the generation's beginning.
  double longest_recovery_s() const { return longest_recovery_s_; }
  double seconds() const;                                 // That the job took.
  int32_t num_failures() const { return num_failures_; }  // Repeated ones.
  int32_t num_takeovers() const { return num_takeovers_; }
  int32_t num_sizes() const;  // Different numbers of ranks that trained.
  // Why processes were killed on order.
  const std::vector<std::string>& kill_reasons() const { return kill_reasons_; }

 private:
  struct SimulatedWorker {
    ProcessId process;
    int32_t agent_idx;
    bool alive = true;
    bool frozen = false;
    // Once told to clear it is stuck for ever, and its heartbeats go on.
    bool hangs_when_told = false;
    bool stuck = false;
    bool hung = false;     // In a step, for ever.
    bool flipped = false;  // A bit of its state, since that was restored.
    Generation seen{};     // Highest it was told of; older is refused.
    Generation given{};    // The one that it works for.
    WorkerPhase phase = WorkerPhase::kIdle;
    bool failed = false;
    int64_t steps = 0;
    bool vote_to_stop = false;
    bool vote_to_pause = false;
    bool paused = false;
    bool done = false;
    std::vector<JobEvent> unacknowledged;
  };

  void At(double delay_s, std::function<void()> work);
  double Random(double low, double high);
  void Violate(const std::string& what);

  // Coordinator.
  void StartCoordinator();
  void KillCoordinator();
  void Deliver(const JobEvent& event);
  // Fails at random moments that far apart on average.
  void Repeat(double mean_s, const std::function<void()>& fail);
  double StepSeconds(Generation generation) const;
  void BeginStep(Generation generation);
  // Seconds until a worker that is told to end its step has ended it.
  double RestOfStep(const SimulatedWorker& worker) const;
  // The ranks of a job that has all the hosts that train.
  int32_t NumRanksOfAll() const {
    return (options_.num_agents - options_.spare_hosts) *
           options_.devices_per_agent;
  }
  // The workers of the plan that is asked for, by rank.
  std::vector<WorkerIdx> MembersToPlan() const;
  // Over the network: late, perhaps twice, lost if the coordinator is away.
  void Post(const JobEvent& event);
  void Do(const JobAction& action);
  void Do(const MakePlan&);
  void Do(const AbandonPlan&);
  void Do(const WeighGrowth& action);
  void Do(const LeaveOut&) {}
  void Do(const StartWorkerProcess& action);
  void Do(const KillWorkerProcess& action);
  void Do(const RecordGeneration& action);
  void Do(const AbortOlder& action);
  void Do(const BeginGeneration& action);
  void Do(const CommitStep& action);
  void Do(const GiveUpCommits& action);
  void WriteCommit(const CommitStep& action);
  void Do(const TellWorkersToStop&);
  void Do(const TellWorkersToPause&);
  void Do(const Report& action);
  void Do(const EndJob& action);

  // Agents and workers.
  void JoinAgent(int32_t agent_idx);
  void JoinWorker(size_t worker_idx);
  void Heartbeats();
  void PostFromWorker(size_t worker_idx, const JobEvent& event);
  void KillWorker(size_t worker_idx, const std::string& detail);
  void BeginFlapping();
  void Flap(int32_t num_left);
  void CheckLeftOut(const BeginGeneration& action);
  void KillRandomWorker();  // Perhaps one that is dead.
  void KillLiveWorker();
  void FreezeRandomWorker();
  void MakeRandomWorkerHang();
  void HangRandomRank();
  void FindWrongReplica();
  void RollBackSteps();
  void FlipAndKill();
  // Compares the replicas before a step is committed. True if some differ; the
  // generation takes no step then.
  bool FindsFlips(Generation generation, int64_t step,
                  const std::vector<size_t>& members);
  void LoseCoordinatorHost();
  void TakeOver();
  // A host but the coordinator's, which is not the only one.
  int32_t OtherHost();
  void EndHost(int32_t agent_idx);
  void LoseRandomHost();
  void LosePairOfHosts();
  void CutRandomHost();
  void ReturnHost(int32_t agent_idx);
  bool IsReachable(int32_t agent_idx) const {
    return hosts_[agent_idx].alive && !hosts_[agent_idx].cut;
  }
  void Clear(size_t worker_idx, Generation generation);
  void RunStep(Generation generation);
  void FailGeneration(Generation generation);
  // Lives, and its main thread does what it is told.
  bool IsResponsive(const SimulatedWorker& worker) const;
  std::vector<size_t> Members(Generation generation);
  // Copies in memory, as worker/agent/replica_keeper.h keeps them. A worker's
  // outlive its processes, and end with its host.
  void TakeReplicas(Generation generation, int64_t step);
  // All ranks have stopped after `step`, put their state into memory and wait.
  void Pause(Generation generation, int64_t step);
  void AddReplica(WorkerIdx holder, const HeldReplica& replica);
  void ArriveAtPartner(const HeldReplica& replica, WorkerIdx partner);
  // Keeps the state of all ranks as this worker has it.
  void KeepLiveState(const SimulatedWorker& worker);
  // A flipped part is restored only where one worker alone holds it.
  void ExpectUnflipped(const ReplicaChoice& choice,
                       const std::vector<HeldReplica>& held);
  bool IsAtWork(WorkerIdx worker, Generation generation) const;
  int64_t ChooseStep(const BeginGeneration& action);
  int32_t HostOf(WorkerIdx worker) const {
    return ToInt(worker) / options_.devices_per_agent;
  }
  // Counts the hosts of the generation's members that cannot be reached.
  int32_t NumHostsAway(Generation generation) const;
  std::vector<std::string> HostsOf(const std::vector<WorkerIdx>& workers) const;
  // The hosts that may be away while a set of copies that `workers` took is
  // whole.
  int32_t NumAbsencesSurvived(const std::vector<WorkerIdx>& workers) const;

  const ClusterOptions options_;
  std::mt19937_64 random_;
  absl::Time now_;
  using Entry = std::pair<absl::Time, uint64_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue_;
  std::map<uint64_t, std::function<void()>> work_;
  uint64_t last_work_ = 0;

  std::optional<JobState> coordinator_;
  int64_t coordinator_life_ = 0;
  int32_t own_agent_ = 0;  // Of the coordinator's host.
  std::optional<int32_t> taken_over_from_;
  int32_t num_takeovers_ = 0;
  RecoveredJob log_;  // The durable one.
  bool has_profile_ = false;
  std::vector<SimulatedWorker> workers_;  // All that ever were.
  struct Host {
    bool alive = true;
    bool cut = false;
  };
  std::vector<Host> hosts_;
  // Those that agents reported, by agent. They are told again when the agent
  // comes back, or the coordinator.
  std::vector<std::pair<int32_t, JobEvent>> reported_deaths_;

  std::set<size_t> planned_sizes_;  // Made, or made ahead.
  int64_t num_plans_ = 0;           // Begun, and abandoned: each counts.
  std::map<int64_t, int32_t> generation_sizes_;  // Begun ones.
  // On disk, by generation and step.
  std::map<std::pair<int64_t, int64_t>, std::set<WorkerIdx>> parts_;
  std::map<int64_t, Generation> commits_;  // That the log has.
  // Under way; true: the last write has begun.
  std::map<std::pair<Generation, int64_t>, bool> committing_;
  int32_t num_given_up_ = 0;
  absl::Time raised_;  // When the newest generation was.
  double longest_recovery_s_ = 0;
  std::map<WorkerIdx, std::map<ReplicaPart, HeldReplica>> memory_;
  std::map<int64_t, std::vector<WorkerIdx>> generation_members_;
  int32_t num_sending_ = 0;  // In the newest generation that took copies.
  Generation sending_{};
  bool renews_ = false;  // The restored state is to be copied at first.
  // The newest set that arrived everywhere, and the hosts that were away since.
  ReplicaSet whole_;
  int32_t num_absences_ = 0;
  int32_t num_absences_survived_ = 0;
  int32_t num_from_memory_ = 0;
  Generation distrusted_{};    // In the log, as LoggedJob has it.
  int32_t num_differing_ = 0;  // Sets whose holders differed.
  int32_t num_back_to_disk_ = 0;
  WorkerIdx flapping_{-1};
  // The flapping worker's device, by the coordinator of that life.
  absl::Time left_out_until_ = absl::InfinitePast();
  int64_t left_out_life_ = -1;
  int32_t num_left_out_ = 0;
  int32_t num_taken_back_ = 0;
  int32_t num_pauses_ = 0;
  int32_t num_pair_losses_ = 0;
  std::optional<EndJob> end_;
  std::vector<std::string> violations_;
  Generation stepping_{};  // The newest that has begun with a step.
  absl::Time step_end_ = absl::InfinitePast();  // Of the newest step.
  int32_t num_failures_ = 0;
  int32_t num_stuck_ = 0;
  int32_t num_hung_ = 0;        // Noticed ones.
  std::set<Generation> wrong_;  // Nothing more of these may be committed.
  std::vector<std::string> kill_reasons_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_SIM_CLUSTER_H_
