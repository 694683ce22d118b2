#include "coordinator/job_runner.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/protocol/convert.h"
#include "coordinator/report.h"
#include "fault/checkpoint.h"
#include "fault/file_system.h"
#include "planner/executable.h"
#include "planner/job_file.h"
#include "planner/layout_space.h"
#include "planner/profile_file.h"

namespace millrace {
namespace {

constexpr absl::Duration kTickInterval = absl::Milliseconds(100);
constexpr absl::Duration kJoinTimeout = absl::Seconds(60);

double UnixNow() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

const char* StatusWord(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFinished:
      return "finished";
    case Verdict::kStopped:
    case Verdict::kBroken:
      return "stopped";
    case Verdict::kFailed:
    case Verdict::kRefused:
      return "failed";
  }
  return "failed";
}

int ExitCode(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFinished:
    case Verdict::kStopped:
      return 0;
    case Verdict::kBroken:
    case Verdict::kFailed:
      return 1;
    case Verdict::kRefused:
      return 2;
  }
  return 1;
}

}  // namespace

JobRunner::JobRunner(const CoordinatorOptions& options, JobSpec job,
                     std::unique_ptr<WriteAheadLog> log,
                     std::unique_ptr<RunOutput> output)
    : options_(options),
      job_(std::move(job)),
      job_yaml_(JobToYaml(job_)),
      log_(std::move(log)),
      output_(std::move(output)) {}

absl::StatusOr<std::unique_ptr<JobRunner>> JobRunner::Create(
    const CoordinatorOptions& options) {
  JobSpec job;
  ASSIGN_OR_RETURN(job, LoadJob(options.run_directory + "/job.yaml"));
  std::unique_ptr<WriteAheadLog> log;
  ASSIGN_OR_RETURN(log,
                   WriteAheadLog::Open(options.run_directory + "/state.log"));
  const bool restarted = log->job().started_unix_s > 0;
  if (!restarted) RETURN_IF_ERROR(log->Started(UnixNow()));
  std::unique_ptr<RunOutput> output;
  ASSIGN_OR_RETURN(output, RunOutput::Open(options.run_directory,
                                           log->job().started_unix_s));
  std::unique_ptr<JobRunner> runner(new JobRunner(
      options, std::move(job), std::move(log), std::move(output)));
  const LoggedJob& logged = runner->log_->job();
  if (!logged.plan_json.empty()) {
    ASSIGN_OR_RETURN(runner->plan_, PlanRecordFromJson(logged.plan_json));
    ASSIGN_OR_RETURN(const HardwareProfile profile,
                     LoadProfile(options.run_directory + "/profile.yaml"));
    runner->tuning_ = profile.tuning;
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
  if (logged.ended) {
    runner->exit_code_ = logged.exit_code;
    runner->last_message_ = logged.end_message;
  }
  runner->state_.emplace(
      JobStateOptions{.num_agents = options.num_agents,
                      .profile_only = options.profile_only,
                      .heartbeat_timeout = absl::Milliseconds(
                          runner->job_.fault.heartbeat_timeout_ms),
                      .clear_timeout = absl::Milliseconds(
                          runner->job_.fault.clear_timeout_ms),
                      .join_timeout = kJoinTimeout,
                      .max_restarts = runner->job_.fault.max_restarts},
      RecoveredJob{.generation = logged.generation,
                   .num_ranks = runner->plan_.has_value()
                                    ? runner->plan_->layout.num_ranks()
                                    : 0,
                   .committed_step = logged.committed_step},
      MonotonicNow());
  JobRunner* self = runner.get();
  ASSIGN_OR_RETURN(
      runner->server_,
      Server::Create(
          {.listen_fd = options.listen_fd,
           .secret = options.secret,
           .on_message =
               [self](SessionId session,
                      const protocol::ToCoordinator& message) {
                 self->OnMessage(session, message);
               },
           .on_closed = [self](SessionId session) { self->OnClosed(session); },
           .tick_interval = kTickInterval,
           .on_tick = [self] { self->Handle(Tick{}); }}));
  return runner;
}

JobRunner::~JobRunner() {
  if (planning_.joinable()) planning_.join();
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

// Planning. -------------------------------------------------------------------

DeviceFacts JobRunner::Devices() const {
  DeviceFacts facts;
  for (const auto& [agent_idx, agent] : agents_) {
    facts.num_devices += agent.num_devices();
    facts.machines.push_back(agent.machine());
    facts.ranks_per_host =
        std::max(facts.ranks_per_host, agent.devices_on_host());
    if (facts.machine.empty()) {
      facts.machine = agent.machine();
      facts.threads_per_device = agent.threads_per_device();
      facts.memory_bytes = agent.memory_bytes();
    }
    facts.memory_bytes = std::min(facts.memory_bytes, agent.memory_bytes());
  }
  return facts;
}

void JobRunner::Do(const MakePlan&) {
  if (planning_.joinable()) planning_.join();
  const DeviceFacts devices = Devices();
  // Searching and verifying a checkpoint can take seconds, in which the server
  // goes on listening.
  planning_ = std::thread([this, devices, measured = measured_profile_] {
    PlanOutcome outcome = MakePlanNow(devices, measured);
    server_->Post([this, outcome = std::move(outcome)] { OnPlan(outcome); });
  });
}

JobRunner::PlanOutcome JobRunner::MakePlanNow(
    const DeviceFacts& devices,
    const std::optional<HardwareProfile>& measured) const {
  PlanOutcome outcome;
  if (job_.resources.uses_cuda()) {
    outcome.status = CheckOneGpuKind(devices.machines);
    if (!outcome.status.ok()) return outcome;
  }
  // Before anything is measured.
  outcome.status = CheckExecutable(job_);
  if (!outcome.status.ok()) return outcome;
  outcome.status = CheckLayouts(job_, devices.num_devices);
  if (absl::IsNotFound(outcome.status)) {
    outcome.status = absl::InvalidArgumentError(outcome.status.message());
  }
  if (!outcome.status.ok()) return outcome;
  // To tune is to measure anew, whatever there is.
  const absl::StatusOr<HardwareProfile> profile =
      measured.has_value() ? absl::StatusOr<HardwareProfile>(*measured)
      : options_.tune      ? absl::NotFoundError("asked to tune")
                           : FindProfile(job_, devices);
  if (!profile.ok()) {
    outcome.status = profile.status();
    return outcome;
  }
  outcome.machine = profile->provenance.description;
  if (options_.profile_only) return outcome;
  absl::StatusOr<Plan> plan =
      PlanRun(job_, devices, *profile, options_.run_directory);
  if (!plan.ok()) {
    outcome.status = absl::InvalidArgumentError(plan.status().message());
    return outcome;
  }
  outcome.plan = *std::move(plan);
  outcome.tuning = profile->tuning;
  absl::StatusOr<ResumeChoice> start = ChooseStart();
  if (!start.ok()) {
    outcome.status = absl::InvalidArgumentError(
        absl::StrCat("checkpoint.resume: ", start.status().message()));
    return outcome;
  }
  outcome.resume = *std::move(start);
  return outcome;
}

absl::StatusOr<ResumeChoice> JobRunner::ChooseStart() const {
  const std::string& resume = job_.checkpoint.resume;
  if (resume == "auto") {
    return ChooseResume(*PosixFileSystem(), CheckpointDirectory());
  }
  if (resume == "none") return ResumeChoice{};
  RETURN_IF_ERROR(VerifyCheckpoint(*PosixFileSystem(), resume));
  return ResumeChoice{.path = resume};
}

void JobRunner::OnPlan(const PlanOutcome& outcome) {
  if (absl::IsNotFound(outcome.status)) {
    progress_->Line(
        options_.tune
            ? "tuning kernels, then measuring; some minutes"
            : "no profile of this machine for this job yet; measuring one");
    Handle(PlanNeedsProfile{});
    return;
  }
  if (!outcome.status.ok()) {
    Handle(PlanRefused{std::string(outcome.status.message())});
    return;
  }
  if (options_.profile_only) {
    Handle(PlanMade{0});
    return;
  }
  const Plan& plan = outcome.plan;
  plan_ = {.layout = plan.layout,
           .step_time_s = plan.prediction.step_time_s,
           .memory_bytes = plan.prediction.memory_bytes(),
           .program_hashes = plan.program_hashes,
           .ranks_per_host = Devices().ranks_per_host,
           .resume_path = outcome.resume.path};
  tuning_ = outcome.tuning;
  MustSucceed(log_->PlanChosen(PlanRecordToJson(*plan_)));
  const std::string layout = LayoutToString(plan.layout);
  output_->Event({.event = "planned", .detail = layout});
  for (const std::string& warning : plan.warnings) {
    progress_->Line(absl::StrCat("warning: ", warning));
  }
  progress_->Line(
      absl::StrCat("plan: ", layout, "; predicted step ",
                   FormatSeconds(plan.prediction.step_time_s), ", ",
                   FormatCount(plan.prediction.tokens_per_s), " tokens/s, ",
                   FormatBytes(plan.prediction.memory_bytes()), " a rank"));
  ReportSkipped(outcome.resume);
  if (!outcome.resume.path.empty()) {
    progress_->Line(absl::StrCat("resuming from ", outcome.resume.path));
  }
  progress_.emplace(
      ProgressOptions{.interactive = IsInteractive(),
                      .num_steps = job_.training.num_steps,
                      .predicted_step_time_s = plan_->step_time_s},
      std::cout);
  Handle(PlanMade{plan.layout.num_ranks()});
}

// Generations. ----------------------------------------------------------------

void JobRunner::SendToAgent(int32_t agent_idx,
                            const protocol::FromCoordinator& message) {
  const auto found = agent_sessions_.find(agent_idx);
  if (found != agent_sessions_.end()) server_->Send(found->second, message);
}

void JobRunner::SendToWorkers(const protocol::FromCoordinator& message) {
  for (const auto& [rank, session] : worker_sessions_) {
    server_->Send(session, message);
  }
}

void JobRunner::Do(const StartWorkerProcess& action) {
  protocol::FromCoordinator message;
  message.mutable_start_worker()->set_rank(ToInt(action.process.rank));
  message.mutable_start_worker()->set_incarnation(action.process.incarnation);
  SendToAgent(action.agent_idx, message);
}

void JobRunner::Do(const KillWorkerProcess& action) {
  output_->Event({.event = "worker_killed",
                  .generation = ToInt(state_->generation()),
                  .rank = ToInt(action.process.rank),
                  .detail = action.reason});
  protocol::FromCoordinator message;
  message.mutable_kill_worker()->set_rank(ToInt(action.process.rank));
  message.mutable_kill_worker()->set_incarnation(action.process.incarnation);
  SendToAgent(action.agent_idx, message);
}

void JobRunner::Do(const RecordGeneration& action) {
  MustSucceed(log_->GenerationRaised(action.generation));
  rendezvous_.clear();
  rendezvous_waiters_.clear();
  parts_.clear();
  timelines_.clear();
  parameter_hashes_.clear();
  if (began_training_ && !recovery_began_s_.has_value()) {
    recovery_began_s_ = output_->SecondsSinceStart();
  }
}

void JobRunner::Do(const AbortOlder& action) {
  protocol::FromCoordinator message;
  message.set_generation(ToInt(action.generation));
  message.mutable_abort_generation();
  SendToWorkers(message);
}

std::string JobRunner::CheckpointDirectory() const {
  return job_.checkpoint.directory.empty()
             ? options_.run_directory + "/checkpoints"
             : job_.checkpoint.directory;
}

void JobRunner::Do(const BeginGeneration& action) {
  protocol::FromCoordinator message;
  message.set_generation(ToInt(action.generation));
  protocol::StartGeneration* start = message.mutable_start_generation();
  start->set_num_ranks(action.num_ranks);
  start->set_job_yaml(job_yaml_);
  start->set_ranks_per_host(Devices().ranks_per_host);
  if (action.purpose == Purpose::kProfile) {
    start->set_purpose(protocol::GENERATION_PURPOSE_PROFILE);
    if (options_.tune) {
      start->set_tune_command(
          absl::StrCat("millrace profile --tune ", options_.job_file));
    }
  } else {
    start->set_purpose(protocol::GENERATION_PURPOSE_TRAIN);
    *start->mutable_layout() = ToMessage(plan_->layout);
    *start->mutable_tuning() = ToMessage(tuning_);
    for (uint64_t hash : plan_->program_hashes) {
      start->add_program_hashes(hash);
    }
    start->set_checkpoint_directory(CheckpointDirectory());
    const absl::StatusOr<std::string> restore =
        RestorePath(action.restore_step);
    if (!restore.ok()) {
      Handle(NothingToRestore{std::string(restore.status().message())});
      return;
    }
    start->set_restore_path(*restore);
  }
  for (const auto& [rank, session] : worker_sessions_) {
    if (ToInt(rank) < action.num_ranks) server_->Send(session, message);
  }
}

absl::StatusOr<std::string> JobRunner::RestorePath(int64_t committed_step) {
  const bool committed = committed_step >= 0;
  const std::string expected =
      committed ? log_->job().committed_path : plan_->resume_path;
  if (!verify_before_restore_) return expected;
  const bool resumes_directory = job_.checkpoint.resume == "auto";
  // A checkpoint that the user named is not exchanged for another.
  const bool may_exchange = committed || resumes_directory;
  ResumeChoice choice;
  ASSIGN_OR_RETURN(
      choice,
      ChooseRestore(
          *PosixFileSystem(),
          {.path = expected,
           .directory = may_exchange ? CheckpointDirectory() : "",
           .newest_step =
               committed ? committed_step : std::numeric_limits<int64_t>::max(),
           .job_yaml = resumes_directory ? "" : job_yaml_}));
  ReportSkipped(choice);
  if (choice.path == expected) return expected;
  progress_->Line(absl::StrCat("going on from ", choice.path, " instead"));
  // Logged, so that a restarted coordinator does not go back to the damaged
  // one.
  if (committed) {
    MustSucceed(log_->CheckpointCommitted(choice.step, choice.path));
    Handle(RestoredEarlier{choice.step});
  } else {
    plan_->resume_path = choice.path;
    MustSucceed(log_->PlanChosen(PlanRecordToJson(*plan_)));
  }
  return choice.path;
}

void JobRunner::ReportSkipped(const ResumeChoice& choice) {
  for (const std::string& reason : choice.skipped) {
    progress_->Line(absl::StrCat("checkpoint passed over: ", reason));
    output_->Event({.event = "checkpoint_skipped",
                    .generation = ToInt(state_->generation()),
                    .detail = reason});
  }
}

void JobRunner::Do(const TellWorkersToStop&) {
  protocol::FromCoordinator message;
  message.set_generation(ToInt(state_->generation()));
  message.mutable_stop_training();
  SendToWorkers(message);
}

void JobRunner::Do(const CommitStep& action) {
  std::vector<std::string> entries;
  for (const auto& [rank, part] : parts_[action.step]) {
    entries.push_back(part.entry);
  }
  const CheckpointInfo info = {
      .step = action.step,
      .generation = action.generation,
      .seed = job_.training.seed,
      .samples_consumed = action.step * job_.training.global_batch,
      .layout = plan_->layout,
      .job_yaml = job_yaml_};
  FileSystem& files = *PosixFileSystem();
  absl::Status status = CommitCheckpoint(files, CheckpointDirectory(), info,
                                         entries, job_.checkpoint.keep);
  std::string path;
  if (status.ok()) {
    absl::StatusOr<std::vector<CheckpointEntry>> listed =
        ListCheckpoints(files, CheckpointDirectory());
    status = listed.status();
    if (listed.ok()) {
      for (const CheckpointEntry& entry : *listed) {
        if (entry.step == action.step) path = entry.path;
      }
    }
  }
  if (!status.ok()) {
    output_->Event({.event = "checkpoint_failed",
                    .generation = ToInt(action.generation),
                    .step = action.step,
                    .detail = std::string(status.message())});
    Handle(CommitFailed{action.step, std::string(status.message())});
    return;
  }
  MustSucceed(log_->CheckpointCommitted(action.step, path));
  verify_before_restore_ = false;
  for (const auto& [rank, part] : parts_[action.step]) {
    Acknowledge(worker_sessions_[rank], part.sequence);
  }
  parts_.erase(parts_.begin(), parts_.upper_bound(action.step));
  Handle(StepCommitted{action.step});
}

void JobRunner::Do(const Report& action) {
  std::string detail = action.detail;
  if (action.event == "training") {
    const double now_s = output_->SecondsSinceStart();
    if (!began_training_) {
      output_->AddStartup(now_s);
    } else if (recovery_began_s_.has_value()) {
      const double seconds = now_s - *recovery_began_s_;
      output_->AddRecovery(seconds);
      detail = absl::StrCat("again after ", FormatSeconds(seconds));
      progress_->Line(absl::StrCat("training again from step ", action.step,
                                   ", ", FormatSeconds(seconds),
                                   " after the failure"));
    }
    began_training_ = true;
    recovery_began_s_.reset();
    MustSucceed(output_->WriteTime());
  } else if (action.event == "worker_died") {
    progress_->Line(absl::StrCat("rank ", action.rank, " died: ", detail));
  } else if (action.event == "stop_requested") {
    progress_->Line(
        "stopping after this step, with a checkpoint; once more stops at once");
  } else if (action.event == "checkpoint_committed") {
    MustSucceed(output_->WriteTime());
  }
  output_->Event({.event = action.event,
                  .generation = ToInt(state_->generation()),
                  .step = action.step,
                  .rank = action.rank,
                  .detail = detail});
}

// The end. --------------------------------------------------------------------

void JobRunner::Do(const EndJob& action) {
  uint64_t hash = 0;  // Ranks' hashes add up, in whatever order they came.
  for (const auto& [rank, part] : parameter_hashes_) hash += part;
  const bool complete =
      plan_.has_value() && static_cast<int32_t>(parameter_hashes_.size()) ==
                               plan_->layout.num_ranks();
  const bool all_well = ExitCode(action.verdict) == 0;
  output_->Event({.event = all_well ? "finished" : "failed",
                  .generation = ToInt(state_->generation()),
                  .step = action.steps,
                  .detail = action.reason});
  MustSucceed(output_->WriteTime());
  MustSucceed(output_->WriteResult(
      {.status = StatusWord(action.verdict),
       .reason = action.reason,
       .steps = std::max<int64_t>(action.steps, 0),
       .final_loss = complete ? final_loss_ : output_->last_loss(),
       .device_bytes = device_bytes_,
       .parameter_hash = complete ? absl::StrFormat("%016x", hash) : ""}));
  const int exit_code = ExitCode(action.verdict);
  last_message_ = all_well ? "" : action.reason;
  MustSucceed(log_->Ended(exit_code, last_message_));
  PrintSummary(action);
  exit_code_ = exit_code;
  protocol::FromCoordinator message;
  message.mutable_shutdown()->set_exit_code(exit_code);
  message.mutable_shutdown()->set_message(last_message_);
  SendToWorkers(message);
  for (const auto& [agent_idx, session] : agent_sessions_) {
    server_->Send(session, message);
  }
  server_->Stop();
}

void JobRunner::PrintSummary(const EndJob& action) {
  if (action.verdict == Verdict::kRefused || options_.profile_only) return;
  const double measured = output_->MedianStepTime();
  if (measured > 0 && plan_.has_value()) {
    progress_->Line(absl::StrFormat(
        "step time: predicted %s, measured %s (median), %.0f %% of predicted "
        "speed",
        FormatSeconds(plan_->step_time_s), FormatSeconds(measured),
        100 * plan_->step_time_s / measured));
    if (device_bytes_ > 0) {
      progress_->Line(absl::StrCat(
          "memory: predicted ", FormatBytes(plan_->memory_bytes), ", used ",
          FormatBytes(device_bytes_), " at most by a rank"));
    }
    progress_->Line(
        absl::StrCat("where the time went: ", output_->TimeInOneLine()));
    TeachProfile(action);
  }
  const absl::Status report = WriteReport(options_.run_directory);
  progress_->Line(absl::StrCat(StatusWord(action.verdict),
                               action.reason.empty() ? "" : ": ", action.reason,
                               "; run directory: ", options_.run_directory));
  if (report.ok()) {
    progress_->Line(
        absl::StrCat("report: ", ReportPath(options_.run_directory)));
  } else {
    progress_->Line(absl::StrCat("no report: ", report.message()));
  }
}

void JobRunner::MustSucceed(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << "coordinator: " << status.message()
            << "; free space or mend the run directory, then start the job "
               "again: it resumes from its last checkpoint"
            << std::endl;
  std::exit(1);
}

}  // namespace millrace
