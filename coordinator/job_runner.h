// Between JobState and the world: messages become events (job_messages.cc),
// actions become messages, files and log records (job_runner.cc, of planning
// job_planning.cc, of the end job_end.cc). All on the server's thread but for
// the slow part of planning.

#ifndef MILLRACE_COORDINATOR_JOB_RUNNER_H_
#define MILLRACE_COORDINATOR_JOB_RUNNER_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/coordinator.h"
#include "coordinator/host_load.h"
#include "coordinator/job_state.h"
#include "coordinator/planning.h"
#include "coordinator/profile_learning.h"
#include "coordinator/progress.h"
#include "coordinator/protocol/millrace.pb.h"
#include "coordinator/resume.h"
#include "coordinator/run_output.h"
#include "coordinator/server.h"
#include "coordinator/write_ahead_log.h"
#include "planner/job/job.h"
#include "planner/simulate/timeline.h"

namespace millrace {

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
    int32_t agent_idx = -1;              // Set for an agent.
    std::optional<RankProcess> process;  // Set for a worker.
  };
  struct Part {
    std::string entry;
    uint64_t sequence;  // Acknowledged when committed, not before: a restarted
                        // coordinator needs it again.
  };

  JobRunner(const CoordinatorOptions& options, JobSpec job,
            std::unique_ptr<WriteAheadLog> log,
            std::unique_ptr<RunOutput> output);

  // Messages.
  void OnMessage(SessionId session, const protocol::ToCoordinator& message);
  void OnClosed(SessionId session);
  void OnHello(SessionId session, const protocol::Hello& hello);
  void OnAgentHello(SessionId session, const protocol::AgentHello& hello);
  void OnAgentMessage(int32_t agent_idx,
                      const protocol::ToCoordinator& message);
  void OnWorkerMessage(SessionId session, const RankProcess& process,
                       const protocol::ToCoordinator& message);
  void OnRendezvous(SessionId session, const protocol::ToCoordinator& message);
  void OnStepDone(Rank rank, int64_t generation,
                  const protocol::StepDone& step);
  void OnCheckpointPart(Rank rank, const protocol::ToCoordinator& message);
  void OnProfile(const protocol::ToCoordinator& message);
  void OnFinished(Rank rank, const protocol::ToCoordinator& message);
  void Acknowledge(SessionId session, uint64_t sequence);

  // Events in, actions out.
  void Handle(const JobEvent& event);
  void Do(const MakePlan&);
  void Do(const StartWorkerProcess& action);
  void Do(const KillWorkerProcess& action);
  void Do(const RecordGeneration& action);
  void Do(const AbortOlder& action);
  void Do(const BeginGeneration& action);
  void Do(const CommitStep& action);
  void Do(const TellWorkersToStop&);
  void Do(const Report& action);
  void Do(const EndJob& action);

  // The slow part of planning, on a thread of its own, and what follows.
  struct PlanOutcome {
    absl::Status status;  // NotFound: needs a profile.
    Plan plan;
    KernelTuning tuning;  // The profile's tuning.
    ResumeChoice resume;
    std::string machine;
  };
  PlanOutcome MakePlanNow(const DeviceFacts& devices,
                          const std::optional<HardwareProfile>& measured) const;
  absl::StatusOr<ResumeChoice> ChooseStart() const;
  void OnPlan(const PlanOutcome& outcome);
  // Keeps what a measured step of all ranks says of the profile, which learns
  // from it when the job has ended well. Failing that hurts no training.
  void ObserveStep(int64_t generation, int64_t step, const Timeline& timeline,
                   double others_share);
  void LearnProfile(const EndJob& action);
  void PrintSummary(const EndJob& action);

  // The checkpoint that a generation restores, empty for the seed. Records and
  // reports what is passed over; an error ends the job.
  absl::StatusOr<std::string> RestorePath(int64_t committed_step);
  void ReportSkipped(const ResumeChoice& choice);
  void ReportMetricsWarnings();

  DeviceFacts Devices() const;
  void SendToAgent(int32_t agent_idx, const protocol::FromCoordinator& message);
  void SendToWorkers(const protocol::FromCoordinator& message);
  std::string CheckpointDirectory() const;
  // A disk that does not take what must be durable ends the coordinator.
  void MustSucceed(const absl::Status& status);

  const CoordinatorOptions options_;
  const JobSpec job_;
  const std::string job_yaml_;
  std::unique_ptr<WriteAheadLog> log_;
  std::unique_ptr<RunOutput> output_;
  std::optional<JobState> state_;
  std::unique_ptr<Server> server_;
  std::thread planning_;
  std::deque<JobEvent> events_;
  bool handling_ = false;
  std::optional<PlanRecord> plan_;
  std::optional<HardwareProfile> measured_profile_;  // By this job's workers.
  KernelTuning tuning_;  // Tuning of the profile that plan_ was made with.
  std::optional<Progress> progress_;
  std::optional<int> exit_code_;
  std::string last_message_;  // For agents that come back after the end.

  std::map<SessionId, Peer> peers_;
  std::map<int32_t, SessionId> agent_sessions_;
  std::map<Rank, SessionId> worker_sessions_;
  std::map<int32_t, protocol::AgentHello> agents_;

  // The fields below belong to the current generation.
  std::map<std::string, std::string> rendezvous_;
  std::map<std::string, std::vector<SessionId>> rendezvous_waiters_;
  std::map<int64_t, std::map<Rank, Part>> parts_;
  struct MeasuredRank {
    RankTimeline timeline;
    RankLoad load;
  };
  std::map<int64_t, std::map<Rank, MeasuredRank>> timelines_;
  std::map<Rank, uint64_t> parameter_hashes_;

  std::optional<StepObserver> observer_;  // Since the first measured step.

  bool began_training_ = false;
  std::optional<double> recovery_began_s_;
  bool verify_before_restore_ = false;  // A checkpoint was found damaged.
  double final_loss_ = 0;
  absl::Time time_written_ = absl::InfinitePast();  // time.json, at a step.
  int64_t device_bytes_ = 0;  // The most that any rank used.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_JOB_RUNNER_H_
