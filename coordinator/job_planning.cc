// How a job comes to its plan, and where it starts; see job_runner.h.

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/job_runner.h"
#include "coordinator/model_files.h"
#include "fault/checkpoint.h"
#include "fault/file_system.h"
#include "planner/job/layout_space.h"

namespace millrace {

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
  RemoveProbes();  // Every agent has looked.
  const absl::Status shared = CheckSharedCheckpoints();
  if (!shared.ok()) {
    Handle(PlanRefused{std::string(shared.message())});
    return;
  }
  const DeviceFacts devices = Devices();
  JobSpec job = job_;
  if (job.data.document_length == 0) {
    job.data.document_length = agents_[0].data().document_length();
  }
  // Searching and verifying a checkpoint can take seconds, in which the server
  // goes on listening.
  planning_ = std::thread([this, job, devices, measured = measured_profile_] {
    PlanOutcome outcome = MakePlanNow(job, devices, measured);
    server_->Post([this, outcome = std::move(outcome)] { OnPlan(outcome); });
  });
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
  outcome.tuning = profile->tuning;
  absl::StatusOr<ResumeChoice> start = ChooseStart();
  if (!start.ok()) {
    outcome.status = absl::InvalidArgumentError(
        absl::StrCat("checkpoint.resume: ", start.status().message()));
    return outcome;
  }
  outcome.resume = *std::move(start);
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
        ChooseResume(*PosixFileSystem(), CheckpointDirectory(), &job_.model));
    RETURN_IF_ERROR(CheckSameStart(*PosixFileSystem(), choice, job_));
    return choice;
  }
  if (resume == "none") return ResumeChoice{};
  RETURN_IF_ERROR(CheckIsOfModel(*PosixFileSystem(), resume, job_.model));
  RETURN_IF_ERROR(VerifyCheckpoint(*PosixFileSystem(), resume));
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
  Handle(PlanMade{plan.layout.num_ranks()});
}

}  // namespace millrace
