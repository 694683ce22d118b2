#include "coordinator/job_runner.h"

#include <cstdlib>
#include <functional>
#include <iostream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/protocol/convert.h"
#include "fault/checkpoint.h"
#include "fault/file_system.h"
#include "planner/job/job_file.h"
#include "planner/profile/profile_file.h"

namespace millrace {
namespace {

constexpr absl::Duration kTickInterval = absl::Milliseconds(100);
constexpr absl::Duration kJoinTimeout = absl::Seconds(60);
// Between ticks: what was sent meanwhile may not have been handled.
constexpr absl::Duration kOwnStall = absl::Seconds(1);

}  // namespace

JobRunner::JobRunner(const CoordinatorOptions& options, JobSpec job,
                     std::string probe, std::unique_ptr<WriteAheadLog> log,
                     std::unique_ptr<RunOutput> output)
    : options_(options),
      job_(std::move(job)),
      job_yaml_(JobToYaml(job_)),
      probe_(std::move(probe)),
      stored_files_(StoredFilesOf(job_.checkpoint)),
      log_(std::move(log)),
      output_(std::move(output)),
      hang_watch_(absl::Milliseconds(job_.fault.hang_timeout_ms)),
      last_tick_(MonotonicNow()) {}

absl::StatusOr<std::unique_ptr<JobRunner>> JobRunner::Create(
    const CoordinatorOptions& options) {
  JobSpec job;
  ASSIGN_OR_RETURN(job, LoadJob(options.run_directory + "/job.yaml"));
  std::unique_ptr<WriteAheadLog> log;
  ASSIGN_OR_RETURN(log,
                   WriteAheadLog::Open(options.run_directory + "/state.log"));
  RETURN_IF_ERROR(RejoinKeepers(options, log.get()));
  const bool restarted = log->job().started_unix_s > 0;
  if (!restarted) RETURN_IF_ERROR(log->Started(UnixNow()));
  std::unique_ptr<RunOutput> output;
  ASSIGN_OR_RETURN(output, RunOutput::Open(options.run_directory,
                                           log->job().started_unix_s));
  if (!options.profile_only) {
    output->Feed(std::make_unique<MetricsFeed>(
        MetricsOptions{.job = job,
                       .run_directory = options.run_directory,
                       .started_unix_s = log->job().started_unix_s}));
  }
  // The same after a restart, so that nothing of an earlier process stays.
  const std::string probe = absl::StrFormat(
      "probe-%016x", std::hash<std::string>()(absl::StrFormat(
                         "%s %.9f", options.run, log->job().started_unix_s)));
  std::unique_ptr<JobRunner> runner(new JobRunner(
      options, std::move(job), probe, std::move(log), std::move(output)));
  const LoggedJob& logged = runner->log_->job();
  if (!logged.plan_json.empty()) {
    ASSIGN_OR_RETURN(runner->plan_, PlanRecordFromJson(logged.plan_json));
    runner->may_have_standbys_ = runner->plan_->keeps_standbys;
    ASSIGN_OR_RETURN(const HardwareProfile profile,
                     LoadProfile(options.run_directory + "/profile.yaml"));
    runner->profile_ = profile;
  }
  for (const StepLoss& read : runner->output_->losses_read()) {
    runner->losses_.Note(read.step, read.loss);
  }
  runner->began_training_ = runner->output_->MedianStepTime() > 0;
  runner->progress_.emplace(
      ProgressOptions{.interactive = IsInteractive(),
                      .num_steps = runner->job_.training.num_steps,
                      .predicted_step_time_s = runner->plan_.has_value()
                                                   ? runner->plan_->step_time_s
                                                   : 0},
      std::cout);
  runner->output_->Event(
      {.event = "started", .detail = restarted ? "coordinator restarted" : ""});
  runner->ReportTakeover();
  if (logged.ended) {
    runner->exit_code_ = logged.exit_code;
    runner->last_message_ = logged.end_message;
  }
  std::vector<std::string> hosts = options.hosts;
  for (const Keeper& keeper : logged.keepers) {
    hosts.resize(std::max<size_t>(hosts.size(), keeper.agent_idx + 1));
    hosts[keeper.agent_idx] = keeper.host;
  }
  runner->state_.emplace(
      JobStateOptions{
          .num_agents = options.num_agents,
          .profile_only = options.profile_only,
          .heartbeat_timeout =
              absl::Milliseconds(runner->job_.fault.heartbeat_timeout_ms),
          .clear_timeout =
              absl::Milliseconds(runner->job_.fault.clear_timeout_ms),
          .join_timeout = kJoinTimeout,
          .first_join_timeout = absl::Seconds(options.join_seconds),
          .host_timeout =
              absl::Milliseconds(runner->job_.fault.host_timeout_ms),
          .max_restarts = runner->job_.fault.max_restarts,
          .hosts = hosts,
          .own_agent = options.own_agent,
          .leave_out_time =
              absl::Milliseconds(runner->job_.fault.leave_out_ms.value_or(
                  runner->job_.resources.uses_cuda() ? FaultSpec::kLeaveOutMs
                                                     : 0)),
          .keeps_spare_hosts = runner->job_.fault.spare_hosts > 0,
          .taken_over_from =
              options.taken_over_from < 0
                  ? std::nullopt
                  : std::optional<int32_t>(options.taken_over_from)},
      RecoveredJob{
          .generation = logged.generation,
          .members = runner->plan_.has_value() ? runner->plan_->members
                                               : std::vector<WorkerIdx>(),
          .devices_by_agent = runner->plan_.has_value()
                                  ? runner->plan_->devices_by_agent
                                  : std::vector<int32_t>(),
          .left_out = runner->plan_.has_value() ? runner->plan_->left_out
                                                : std::vector<WorkerIdx>(),
          .committed_step = logged.committed_step,
          .step_time = runner->plan_.has_value()
                           ? absl::Seconds(runner->plan_->step_time_s)
                           : absl::ZeroDuration()},
      MonotonicNow());
  // Agents look for them when they come.
  if (logged.plan_json.empty()) runner->WriteProbes();
  JobRunner* self = runner.get();
  ASSIGN_OR_RETURN(
      runner->server_,
      Server::Create(
          {.listen_fd = options.listen_fd,
           .secret = options.secret,
           .term = options.term,
           .on_message =
               [self](SessionId session,
                      const protocol::ToCoordinator& message) {
                 self->OnMessage(session, message);
               },
           .on_closed = [self](SessionId session) { self->OnClosed(session); },
           .on_stranger =
               [self](const std::string& description) {
                 self->OnStranger(description);
               },
           .tick_interval = kTickInterval,
           .on_tick = [self] { self->OnTick(); }}));
  const auto post = [self](std::function<void()> work) {
    self->server_->Post(std::move(work));
  };
  runner->folder_work_ = std::make_unique<SideWork>(post);
  runner->committing_ = std::make_unique<SideWork>(post);
  runner->preparing_ = std::make_unique<SideWork>(post);
  if (!logged.plan_json.empty()) {
    runner->KeepProbesWhileNeeded();
    runner->LockCheckpoints(nullptr, [self](const absl::Status& locked) {
      if (locked.ok()) return;
      self->progress_->Line(
          absl::StrCat("no checkpoint will be committed: ", locked.message()));
    });
  }
  return runner;
}

void JobRunner::OnTick() {
  ReportMetricsWarnings();
  const absl::Time now = MonotonicNow();
  if (now - last_tick_ > kOwnStall) {
    hang_watch_.Forgive(now);
    output_->Event(
        {.event = "coordinator_stood_still",
         .generation = ToInt(state_->generation()),
         .detail = absl::StrCat(
             "for ", FormatSeconds(absl::ToDoubleSeconds(now - last_tick_)),
             ", which counts as no silence of others; its host is overloaded, "
             "or the disk of the run directory is slow")});
  }
  last_tick_ = now;
  CheckHang();
  CopyRunFiles();
  LeaveWithAgent();
  Handle(Tick{});
}

JobRunner::~JobRunner() {
  AbandonPlans();
  lock_stop_.request_stop();
  if (planning_.joinable()) planning_.join();
  folder_work_.reset();  // It may write probes.
  RemoveProbes();
}

int JobRunner::Run() {
  server_->Run();
  return exit_code_.value_or(1);
}

void JobRunner::Handle(const JobEvent& event) {
  if (exit_code_.has_value()) return;
  events_.push_back(event);
  if (handling_) return;  // An action of an earlier event led here.
  handling_ = true;
  while (!events_.empty() && !exit_code_.has_value()) {
    const JobEvent next = std::move(events_.front());
    events_.pop_front();
    for (const JobAction& action : state_->Handle(next, MonotonicNow())) {
      std::visit([this](const auto& specific) { Do(specific); }, action);
    }
  }
  handling_ = false;
}

// Generations. ----------------------------------------------------------------

void JobRunner::SendToAgent(int32_t agent_idx,
                            const protocol::FromCoordinator& message) {
  const auto found = agent_sessions_.find(agent_idx);
  if (found != agent_sessions_.end()) server_->Send(found->second, message);
}

void JobRunner::TellOfStandbys(bool keep) {
  if (!keep && !may_have_standbys_) return;
  may_have_standbys_ = true;
  protocol::FromCoordinator message;
  message.mutable_keep_standbys()->set_keep(keep);
  for (const auto& [agent_idx, session] : agent_sessions_) {
    server_->Send(session, message);
  }
}

void JobRunner::SendToWorkers(const protocol::FromCoordinator& message) {
  for (const auto& [worker, session] : worker_sessions_) {
    server_->Send(session, message);
  }
}

void JobRunner::Do(const StartWorkerProcess& action) {
  protocol::FromCoordinator message;
  message.mutable_start_worker()->set_worker(ToInt(action.process.worker));
  message.mutable_start_worker()->set_incarnation(action.process.incarnation);
  const std::string address = AddressOfHost(action.agent_idx);
  if (!address.empty() && !workers_family_.has_value()) {
    workers_family_ = FamilyOf(address);
  }
  message.mutable_start_worker()->set_host_address(address);
  SendToAgent(action.agent_idx, message);
}

void JobRunner::Do(const KillWorkerProcess& action) {
  const std::optional<Rank> rank = state_->RankOf(action.process.worker);
  output_->Event({.event = "worker_killed",
                  .generation = ToInt(state_->generation()),
                  .rank = rank.has_value() ? ToInt(*rank) : -1,
                  .host = state_->HostOf(action.process.worker),
                  .detail = action.reason});
  protocol::FromCoordinator message;
  message.mutable_kill_worker()->set_worker(ToInt(action.process.worker));
  message.mutable_kill_worker()->set_incarnation(action.process.incarnation);
  SendToAgent(action.agent_idx, message);
}

void JobRunner::Do(const RecordGeneration& action) {
  MustSucceed([&] { return log_->GenerationRaised(action.generation); });
  is_preparing_ = stops_when_begun_ = false;
  rendezvous_.clear();
  rendezvous_waiters_.clear();
  hang_watch_.Begin(0, 0, MonotonicNow());
  parts_.clear();
  abandoned_steps_.clear();
  timelines_.clear();
  parameter_hashes_.clear();
  if (began_training_ && !recovery_began_s_.has_value()) {
    recovery_began_s_ = output_->SecondsSinceStart();
    recovers_from_pause_ = state_->was_paused();
  }
}

void JobRunner::Do(const AbortOlder& action) {
  protocol::FromCoordinator message;
  message.set_generation(ToInt(action.generation));
  message.mutable_abort_generation();
  SendToWorkers(message);
}

void JobRunner::Do(const TellWorkersToStop&) {
  stops_when_begun_ = is_preparing_;  // They know nothing to stop yet.
  protocol::FromCoordinator message;
  message.set_generation(ToInt(state_->generation()));
  message.mutable_stop_training();
  SendToWorkers(message);
}

void JobRunner::Do(const TellWorkersToPause&) {
  protocol::FromCoordinator message;
  message.set_generation(ToInt(state_->generation()));
  message.mutable_stop_training()->set_pause(true);
  SendToWorkers(message);
}

void JobRunner::Do(const Report& action) {
  std::string detail = action.detail;
  const std::optional<Rank> rank =
      action.worker.has_value() ? state_->RankOf(*action.worker) : std::nullopt;
  if (action.event == "training") {
    // After a restart of this process nothing began the generation.
    if (watched_ != state_->generation()) {
      BeginWatching();
      committing_->Add([this] { return FindFoldersAgain(); });
      ReconsiderInterval();
    }
    const double now_s = output_->SecondsSinceStart();
    if (!began_training_) {
      output_->AddStartup(now_s);
    } else if (recovery_began_s_.has_value()) {
      const double seconds = now_s - *recovery_began_s_;
      output_->AddRecovery(seconds);
      last_recovery_s_ = seconds;
      num_failures_ += !recovers_from_pause_;
      detail = absl::StrCat("again after ", FormatSeconds(seconds));
      progress_->Line(
          absl::StrCat("training again from step ", action.step, ", ",
                       FormatSeconds(seconds), " after the ",
                       recovers_from_pause_ ? "last step" : "failure"));
    }
    ReportSource(action.step);
    if (plan_.has_value()) TellOfStandbys(plan_->keeps_standbys);
    PlanForOneHostFewer();
    began_training_ = true;
    recovery_began_s_.reset();
    ShouldSucceed(output_->WriteTime());
  } else if (action.event == "worker_died") {
    progress_->Line(
        absl::StrCat(state_->NameOf(*action.worker), " died: ", detail));
  } else if (action.event == "gpu_after_death") {
    progress_->Line(absl::StrCat(state_->NameOf(*action.worker),
                                 ", whose process died: ", detail));
  } else if (action.event == "host_lost") {
    progress_->Line(absl::StrCat("lost ", detail, "; going on without it"));
  } else if (action.event == "device_left_out") {
    progress_->Line(absl::StrCat(state_->NameOf(*action.worker), " ", detail));
  } else if (action.event == "devices_taken_back") {
    progress_->Line(absl::StrCat(
        "the job cannot go on without the devices that failed: ", detail));
  } else if (action.event == "host_returned") {
    progress_->Line(absl::StrCat(detail, " is there again"));
  } else if (action.event == "waiting_for_hosts") {
    progress_->Line(absl::StrCat(
        "the other hosts cannot go on, waiting for those that are lost: ",
        detail));
  } else if (action.event == "generation_failed") {
    progress_->Line(absl::StrCat("starting again: ", detail));
  } else if (action.event == "agents_missing") {
    progress_->Line(absl::StrCat("waiting for ", detail));
  } else if (action.event == "stop_requested") {
    OutliveAgent();
    progress_->Line(absl::StrCat("stopping after this step, ",
                                 CanCheckpoint()
                                     ? "with a checkpoint"
                                     : "without a checkpoint, for which there "
                                       "is no folder",
                                 "; once more stops at once"));
  } else if (action.event == "checkpoint_committed") {
    detail = commit_detail_;
    ShouldSucceed(output_->WriteTime());
  }
  output_->Event(
      {.event = action.event,
       .generation = action.generation >= 0 ? action.generation
                                            : ToInt(state_->generation()),
       .step = action.step,
       .rank = rank.has_value() ? ToInt(*rank) : -1,
       .host = action.worker.has_value() ? state_->HostOf(*action.worker) : "",
       .detail = detail});
}

void JobRunner::OnStranger(const std::string& description) {
  output_->Event({.event = "stranger", .detail = description});
  progress_->Line(absl::StrCat(
      "turned away a connection that did not prove to know the job's secret, "
      "from ",
      description, "; more are only counted"));
}

void JobRunner::ReportMetricsWarnings() {
  if (const absl::Status lost = output_->TakeLoss(); !lost.ok()) {
    Alarm(lost, "training goes on");
  }
  for (const std::string& warning : output_->TakeMetricsWarnings()) {
    progress_->Line(warning);
    output_->Event({.event = "metrics_failed", .detail = warning});
  }
}

void JobRunner::MustSucceed(absl::FunctionRef<absl::Status()> write) {
  absl::Status status = write();
  if (status.ok()) return;
  if (absl::IsAborted(status) || absl::IsUnavailable(status)) {
    StepDown(std::string(status.message()));  // LogCopies'.
  }
  if (output_->FreeReserve()) {
    Alarm(status, "the space that was kept for this is used now");
    status = write();
    if (status.ok()) return;
  }
  std::cerr << "coordinator: " << status.message()
            << "; free space or mend the run directory, then start the job "
               "again"
            << std::endl;
  static_cast<void>(output_->WriteResult(
      {.status = "failed",
       .reason = absl::StrCat("the run directory cannot be written: ",
                              status.message()),
       .steps = std::max<int64_t>(state_->committed_step(), 0)}));
  std::exit(1);
}

void JobRunner::ShouldSucceed(const absl::Status& status) {
  if (!status.ok()) Alarm(status, "training goes on");
}

void JobRunner::Alarm(const absl::Status& status, absl::string_view what) {
  if (std::exchange(alarmed_, true)) return;
  const std::string line = absl::StrCat(
      "the run directory cannot be written: ", status.message(), "; ", what,
      ", but records are lost until there is space again");
  progress_->Line(line);
  output_->Event({.event = "records_lost", .detail = line});
}

}  // namespace millrace
