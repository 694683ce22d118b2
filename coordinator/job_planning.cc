// How a job comes to its plan, and where it starts; see job_runner.h.

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/job_runner.h"
#include "coordinator/model_files.h"
#include "fault/checkpoint.h"
#include "fault/file_system.h"
#include "planner/job/layout_space.h"

namespace millrace {

DeviceFacts JobRunner::Devices(bool all_ready) const {
  DeviceFacts facts = {.may_leave_idle = plan_.has_value()};
  for (const auto& [agent_idx, agent] : agents_) {
    if (!state_->TakesPart(agent_idx) &&
        !(all_ready && state_->IsReady(agent_idx))) {
      continue;
    }
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
  if (const absl::Status chosen = ChooseKeepers(); !chosen.ok()) {
    Handle(PlanRefused{std::string(chosen.message())});
    return;
  }
  // A job that has begun goes on, and tries again with its next checkpoint.
  if (const absl::Status locked = LockCheckpoints();
      !locked.ok() && !plan_.has_value()) {
    Handle(
        PlanRefused{absl::StrCat("checkpoint.directory: ", locked.message())});
    return;
  }
  if (planning_.joinable()) planning_.join();
  KeepProbesWhileNeeded();
  absl::Status hosts =
      NeedsCheckpoints() ? FindCheckpoints() : absl::OkStatus();
  if (hosts.ok()) hosts = CheckOneAddressFamily();
  if (!hosts.ok()) {
    Handle(PlanRefused{std::string(hosts.message())});
    return;
  }
  const DeviceFacts devices = Devices();
  const JobSpec job = JobToPlan();
  // Searching and verifying a checkpoint can take seconds, in which the server
  // goes on listening.
  planning_ = std::thread([this, job, devices, again = plan_.has_value(),
                           measured = measured_profile_] {
    PlanOutcome outcome =
        again ? PlanAgain(job, devices) : MakePlanNow(job, devices, measured);
    server_->Post([this, outcome = std::move(outcome)] { OnPlan(outcome); });
  });
}

JobSpec JobRunner::JobToPlan() const {
  JobSpec job = job_;
  if (job.data.document_length == 0) {
    job.data.document_length =
        agents_.at(options_.own_agent).data().document_length();
  }
  return job;
}

JobRunner::PlanOutcome JobRunner::PlanAgain(const JobSpec& job,
                                            const DeviceFacts& devices) const {
  PlanOutcome outcome = {.profile = *profile_};
  outcome.status = CheckRunnable(job, devices);
  if (!outcome.status.ok()) return outcome;
  absl::StatusOr<Plan> plan =
      PlanRun(job, devices, *profile_, options_.run_directory);
  if (plan.ok()) {
    outcome.plan = *std::move(plan);
  } else {
    outcome.status = absl::InvalidArgumentError(plan.status().message());
  }
  return outcome;
}

JobRunner::PlanOutcome JobRunner::MakePlanNow(
    const JobSpec& job, const DeviceFacts& devices,
    const std::optional<HardwareProfile>& measured) const {
  PlanOutcome outcome;
  outcome.status = CheckRunnable(job, devices);
  if (!outcome.status.ok()) return outcome;
  // Whoever asks for a measurement gets one, whatever profile there is.
  const absl::StatusOr<HardwareProfile> profile =
      measured.has_value()    ? absl::StatusOr<HardwareProfile>(*measured)
      : options_.profile_only ? absl::NotFoundError("asked to measure")
                              : FindProfile(job, devices);
  // A profile that was asked for is measured even if the job does not fit: it
  // may serve plans for larger machines.
  if (absl::IsNotFound(profile.status()) && !options_.profile_only) {
    outcome.status = CheckStateFits(job, devices);
    if (!outcome.status.ok()) return outcome;
  }
  if (!profile.ok()) {
    outcome.status = profile.status();
    return outcome;
  }
  outcome.machine = profile->provenance.description;
  if (options_.profile_only) return outcome;
  absl::StatusOr<Plan> plan =
      PlanRun(job, devices, *profile, options_.run_directory);
  if (!plan.ok()) {
    outcome.status = absl::InvalidArgumentError(plan.status().message());
    return outcome;
  }
  outcome.plan = *std::move(plan);
  outcome.profile = *profile;
  absl::StatusOr<ResumeChoice> start = ChooseStart();
  if (!start.ok()) {
    outcome.status = absl::InvalidArgumentError(
        absl::StrCat("checkpoint.resume: ", start.status().message()));
    return outcome;
  }
  outcome.resume = *std::move(start);
  outcome.resume.damaged_copies = TakeDamagedCopies();
  const absl::Status kept =
      KeepModelFiles(*PosixFileSystem(), job, CheckpointDirectory());
  if (!kept.ok()) {
    // Not NotFound, which stands for a profile.
    outcome.status = absl::InvalidArgumentError(
        absl::StrCat("model.from: ", kept.message()));
  }
  return outcome;
}

absl::StatusOr<ResumeChoice> JobRunner::ChooseStart() const {
  const std::string& resume = job_.checkpoint.resume;
  if (resume == "auto") {
    ASSIGN_OR_RETURN(
        ResumeChoice choice,
        ChooseResume(CheckpointFiles(), CheckpointDirectory(), &job_.model));
    RETURN_IF_ERROR(CheckSameStart(CheckpointFiles(), choice, job_));
    return choice;
  }
  if (resume == "none") return ResumeChoice{};
  RETURN_IF_ERROR(CheckIsOfModel(CheckpointFiles(), resume, job_.model));
  RETURN_IF_ERROR(VerifyCheckpoint(CheckpointFiles(), resume));
  return ResumeChoice{.path = resume};
}

void JobRunner::OnPlan(const PlanOutcome& outcome) {
  if (absl::IsNotFound(outcome.status)) {
    progress_->Line(
        options_.tune ? "tuning kernels, then measuring; some minutes"
        : options_.profile_only
            ? "measuring this machine for the job; about a minute"
            : "no profile of this machine for this job yet; measuring one");
    Handle(PlanNeedsProfile{});
    return;
  }
  if (!outcome.status.ok()) {
    Handle(PlanRefused{std::string(outcome.status.message())});
    return;
  }
  if (options_.profile_only) {
    Handle(PlanMade{});
    return;
  }
  const Plan& plan = outcome.plan;
  const bool again = plan_.has_value();
  std::vector<WorkerIdx> members = state_->Workers();
  if (static_cast<int32_t>(members.size()) < plan.layout.num_ranks()) {
    Handle(PlanMade{});  // A host was lost meanwhile.
    return;
  }
  members.resize(plan.layout.num_ranks());
  const absl::StatusOr<ReplicaPlan> replicas =
      ReplicaPlanOf(plan.layout, plan.prediction.step_time_s,
                    FailureDomains(members), plan.prediction.memory_bytes());
  if (!replicas.ok()) {
    Handle(PlanRefused{std::string(replicas.status().message())});
    return;
  }
  replica_plan_ = *replicas;
  plan_ = {.layout = plan.layout,
           .step_time_s = plan.prediction.step_time_s,
           .memory_bytes = plan.prediction.memory_bytes(),
           .program_hashes = plan.program_hashes,
           .compute_s = ComputeSecondsByStage(plan),
           .ranks_per_host = Devices().ranks_per_host,
           .resume_path = again ? plan_->resume_path : outcome.resume.path,
           .members = members,
           .devices_by_agent = state_->DevicesByAgent()};
  profile_ = outcome.profile;
  if (!log_->job().keepers.empty() && log_->job().profile_yaml.empty()) {
    const absl::StatusOr<std::string> yaml =
        ReadFile(options_.run_directory + "/profile.yaml");
    if (yaml.ok()) MustSucceed([&] { return log_->ProfileChosen(*yaml); });
  }
  MustSucceed([&] { return log_->PlanChosen(PlanRecordToJson(*plan_)); });
  const std::string layout = LayoutToString(plan.layout);
  output_->Event({.event = "planned", .detail = layout});
  for (const std::string& warning : plan.warnings) {
    progress_->Line(absl::StrCat("warning: ", warning));
  }
  progress_->Line(absl::StrCat(
      "plan: ", layout, "; predicted step ",
      FormatSeconds(plan.prediction.step_time_s), ", ",
      FormatCount(plan.prediction.tokens_per_s), " tokens/s, ",
      FormatBytes(plan.prediction.memory_bytes()), " a rank",
      plan.num_idle_devices == 0
          ? ""
          : absl::StrCat("; ", plan.num_idle_devices, " devices stay idle")));
  if (!replica_plan_->warning.empty()) {
    progress_->Line(absl::StrCat("warning: ", replica_plan_->warning));
  }
  progress_->Line(
      absl::StrCat("copies in memory: ", replica_plan_->description));
  if (again) {
    Handle(PlanMade{members});
    return;
  }
  ReportSkipped(outcome.resume);
  if (!outcome.resume.path.empty()) {
    progress_->Line(absl::StrCat(
        "resuming from ", outcome.resume.path,
        job_.model_from.empty()
            ? ""
            : absl::StrCat("; its weights take the place of those in ",
                           job_.model_from)));
  } else if (!job_.model_from.empty()) {
    progress_->Line(absl::StrCat("starting from the weights in ",
                                 job_.model_from, " (fingerprint ",
                                 job_.model_fingerprint, ")"));
  }
  progress_.emplace(
      ProgressOptions{.interactive = IsInteractive(),
                      .num_steps = job_.training.num_steps,
                      .predicted_step_time_s = plan_->step_time_s},
      std::cout);
  Handle(PlanMade{members});
}

// Hosts that come and go. -----------------------------------------------------

void JobRunner::Do(const LeaveOut& action) {
  const auto session = agent_sessions_.find(action.agent_idx);
  if (session == agent_sessions_.end()) return;
  if (!action.refusal.empty()) {
    progress_->Line(action.refusal);
    Refuse(session->second, action.refusal);
    return;
  }
  for (const auto& [worker, of_worker] : worker_sessions_) {
    if (state_->AgentOf(worker) == action.agent_idx) {
      server_->CloseSession(of_worker);
    }
  }
  server_->CloseSession(session->second);
}

std::string JobRunner::ReasonNotToGrow() const {
  if (job_.fault.take_in_hosts == "never") {
    return "fault.take_in_hosts is never";
  }
  return std::string(CheckOneAddressFamily(/*all_ready=*/true).message());
}

void JobRunner::Do(const WeighGrowth& action) {
  const std::string obstacle = ReasonNotToGrow();
  if (!obstacle.empty()) {
    progress_->Line(absl::StrCat("not taking it in: ", obstacle));
    return;
  }
  if (planning_.joinable()) planning_.join();
  planning_ =
      std::thread([this, generation = action.generation, job = JobToPlan(),
                   profile = *profile_, devices = Devices(/*all_ready=*/true)] {
        const absl::Status runnable = CheckRunnable(job, devices);
        absl::StatusOr<Plan> plan = runnable.ok()
                                        ? PlanForDevices(job, devices, profile)
                                        : absl::StatusOr<Plan>(runnable);
        server_->Post([this, generation, plan = std::move(plan)] {
          OnGrowthPlan(generation, plan);
        });
      });
}

void JobRunner::OnGrowthPlan(Generation generation,
                             const absl::StatusOr<Plan>& plan) {
  if (generation != state_->generation()) return;
  if (!plan.ok()) {
    progress_->Line(
        absl::StrCat("not taking it in: ", plan.status().message()));
    return;
  }
  const double now_s = plan_->step_time_s;
  const double then_s = plan->prediction.step_time_s;
  const int64_t steps_left = job_.training.num_steps - output_->last_step();
  const double gained_s = static_cast<double>(steps_left) * (now_s - then_s);
  const double cost_s = last_recovery_s_ + last_write_s_;
  const bool is_worthwhile =
      gained_s > cost_s || job_.fault.take_in_hosts == "always";
  progress_->Line(absl::StrCat(
      "with all hosts a step would take ", FormatSeconds(then_s), ", not ",
      FormatSeconds(now_s), ": ", FormatSeconds(gained_s), " over the ",
      steps_left, " steps left, at a cost of ", FormatSeconds(cost_s),
      is_worthwhile ? "; taking them in after a checkpoint"
                    : "; going on without them"));
  Handle(GrowthWeighed{generation, is_worthwhile});
}

}  // namespace millrace
