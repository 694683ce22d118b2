// How a job comes to its plan, and where it starts; see job_runner.h.

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/checkpoint_interval.h"
#include "coordinator/job_runner.h"
#include "coordinator/model_files.h"
#include "fault/checkpoint.h"
#include "fault/file_system.h"
#include "planner/job/layout_space.h"
#include "planner/search/snapshot_plan.h"

namespace millrace {
namespace {

// A plan that is not written yet: one ahead, or one to be weighed.
absl::StatusOr<std::shared_ptr<const Plan>> PlanOnly(
    const JobSpec& job, const DeviceFacts& devices,
    const HardwareProfile& profile, const std::stop_token& stop) {
  RETURN_IF_ERROR(CheckRunnable(job, devices));
  ASSIGN_OR_RETURN(Plan plan, PlanForDevices(job, devices, profile, stop));
  return std::make_shared<const Plan>(std::move(plan));
}

}  // namespace

DeviceFacts JobRunner::Devices(bool all_ready) const {
  DeviceFacts facts = {.may_leave_idle = plan_.has_value()};
  const auto num_training =
      static_cast<size_t>(options_.num_agents - job_.fault.spare_hosts);
  for (const auto& [agent_idx, agent] : agents_) {
    if (!state_->TakesPart(agent_idx) &&
        !(all_ready && state_->IsReady(agent_idx))) {
      continue;
    }
    const int32_t num_devices =
        state_->NumUsableDevices(agent_idx, /*for_growth=*/all_ready);
    if (num_devices == 0) continue;
    if (facts.machines.size() < num_training) {
      facts.num_devices += num_devices;
      facts.machines.push_back(agent.machine());
    } else {
      facts.num_spare_devices += num_devices;
    }
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
  absl::Status possible = CheckSpareHosts();
  if (possible.ok()) possible = ChooseKeepers();
  if (!possible.ok()) {
    Handle(PlanRefused{std::string(possible.message())});
    return;
  }
  // A job that has begun goes on, and tries again with its next checkpoint.
  if (plan_.has_value()) {
    PlanForDevicesThere();
    return;
  }
  LockCheckpoints(/*waits=*/nullptr, [this](const absl::Status& locked) {
    if (locked.ok()) {
      PlanForDevicesThere();
    } else {
      Handle(PlanRefused{
          absl::StrCat("checkpoint.directory: ", locked.message())});
    }
  });
}

void JobRunner::PlanForDevicesThere() {
  if (exit_code_.has_value()) return;
  KeepProbesWhileNeeded();
  if (const absl::Status hosts = CheckOneAddressFamily(); !hosts.ok()) {
    Handle(PlanRefused{std::string(hosts.message())});
    return;
  }
  const std::optional<FolderSearch> search =
      NeedsCheckpoints() ? SearchForFolders() : std::nullopt;
  const DeviceFacts devices = Devices();
  const JobSpec job = JobToPlan();
  plan_ahead_.StopUnlessFor(devices);
  // Asking hosts, searching and verifying a checkpoint can take seconds, in
  // which the server goes on listening.
  BeginPlanning([this, job, devices, again = plan_.has_value(),
                 stays = SpareTakesPlace(devices),
                 made = made_plans_.Find(devices), search,
                 measured = measured_profile_](const std::stop_token& stop) {
    absl::StatusOr<CheckpointFolders> folders = CheckpointFolders();
    if (search.has_value()) folders = FindFolders(*search);
    PlanOutcome outcome;
    if (!folders.ok()) {
      // Not NotFound, which stands for a profile.
      outcome.status = absl::InvalidArgumentError(folders.status().message());
    } else if (stays) {
      outcome.devices = devices;
    } else if (again) {
      outcome =
          PlanAgain(job, devices,
                    made != nullptr ? made : plan_ahead_.Await(devices), stop);
    } else {
      outcome = MakePlanNow(job, devices, measured, *folders, stop);
    }
    if (folders.ok()) outcome.folders = *std::move(folders);
    server_->Post([this, outcome = std::move(outcome)] { OnPlan(outcome); });
  });
}

void JobRunner::BeginPlanning(std::function<void(std::stop_token)> plan) {
  planning_stop_.request_stop();
  planning_stop_ = std::stop_source();
  planning_ =
      std::thread([before = std::move(planning_), plan = std::move(plan),
                   stop = planning_stop_.get_token()]() mutable {
        if (before.joinable()) before.join();
        plan(stop);
      });
}

void JobRunner::AbandonPlans() {
  planning_stop_.request_stop();
  plan_ahead_.Stop();
}

void JobRunner::Do(const AbandonPlan&) { AbandonPlans(); }

void JobRunner::PlanForOneHostFewer() {
  std::vector<AgentDevices> agents;
  for (const auto& [agent_idx, agent] : agents_) {
    const int32_t num_devices =
        state_->NumUsableDevices(agent_idx, /*for_growth=*/false);
    if (!state_->TakesPart(agent_idx) || num_devices == 0) continue;
    agents.push_back({num_devices, agent.devices_on_host()});
  }
  const std::optional<DeviceFacts> left = WithoutOneHost(Devices(), agents);
  fewer_hosts_step_s_.reset();
  if (!left.has_value() || !profile_.has_value()) return;
  if (const auto made = made_plans_.Find(*left); made != nullptr) {
    fewer_hosts_step_s_ = made->prediction.step_time_s;
    return;
  }
  plan_ahead_.Begin(*left, [this, job = JobToPlan(), devices = *left,
                            profile = *profile_](const std::stop_token& stop) {
    const double began_s = MonotonicSeconds();
    const auto plan = PlanOnly(job, devices, profile, stop);
    if (stop.stop_requested()) return std::shared_ptr<const Plan>();
    std::optional<double> step_s;
    if (plan.ok()) step_s = (*plan)->prediction.step_time_s;
    const std::string detail =
        plan.ok()
            ? absl::StrCat("for a lost host, in ",
                           FormatSeconds(MonotonicSeconds() - began_s), ": ",
                           LayoutToString((*plan)->layout), "; predicted step ",
                           FormatSeconds((*plan)->prediction.step_time_s))
            : absl::StrCat("with a host lost the job cannot go on: ",
                           plan.status().message());
    server_->Post([this, detail, step_s] {
      fewer_hosts_step_s_ = step_s;
      output_->Event({.event = "planned_ahead", .detail = detail});
    });
    return plan.value_or(nullptr);
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

absl::StatusOr<std::shared_ptr<const Plan>> JobRunner::PlanAndWrite(
    const JobSpec& job, const DeviceFacts& devices,
    const HardwareProfile& profile, const std::stop_token& stop) const {
  ASSIGN_OR_RETURN(Plan plan, PlanForDevices(job, devices, profile, stop));
  RETURN_IF_ERROR(WritePlan(plan, job, profile, options_.run_directory));
  return std::make_shared<const Plan>(std::move(plan));
}

JobRunner::PlanOutcome JobRunner::PlanAgain(const JobSpec& job,
                                            const DeviceFacts& devices,
                                            std::shared_ptr<const Plan> made,
                                            const std::stop_token& stop) const {
  PlanOutcome outcome = {
      .devices = devices, .plan = std::move(made), .profile = *profile_};
  if (outcome.plan != nullptr) {
    outcome.status =
        WritePlan(*outcome.plan, job, *profile_, options_.run_directory);
    return outcome;
  }
  outcome.status = CheckRunnable(job, devices);
  if (!outcome.status.ok()) return outcome;
  auto plan = PlanAndWrite(job, devices, *profile_, stop);
  if (plan.ok()) {
    outcome.plan = *std::move(plan);
  } else {
    outcome.status = absl::InvalidArgumentError(plan.status().message());
  }
  return outcome;
}

JobRunner::PlanOutcome JobRunner::MakePlanNow(
    const JobSpec& job, const DeviceFacts& devices,
    const std::optional<HardwareProfile>& measured,
    const CheckpointFolders& folders, const std::stop_token& stop) const {
  PlanOutcome outcome = {.devices = devices};
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
  auto plan = PlanAndWrite(job, devices, *profile, stop);
  if (!plan.ok()) {
    outcome.status = absl::InvalidArgumentError(plan.status().message());
    return outcome;
  }
  outcome.plan = *std::move(plan);
  outcome.profile = *profile;
  absl::StatusOr<ResumeChoice> start = ChooseStart(*FilesOf(folders));
  if (!start.ok()) {
    outcome.status = absl::InvalidArgumentError(
        absl::StrCat("checkpoint.resume: ", start.status().message()));
    return outcome;
  }
  outcome.resume = *std::move(start);
  outcome.resume.damaged_copies = TakeDamagedCopies(folders);
  const absl::Status kept =
      KeepModelFiles(*stored_files_, job, CheckpointDirectory());
  if (!kept.ok()) {
    // Not NotFound, which stands for a profile.
    outcome.status = absl::InvalidArgumentError(
        absl::StrCat("model.from: ", kept.message()));
  }
  return outcome;
}

absl::StatusOr<ResumeChoice> JobRunner::ChooseStart(FileSystem& files) const {
  const std::string& resume = job_.checkpoint.resume;
  if (resume == "auto") {
    ASSIGN_OR_RETURN(ResumeChoice choice,
                     ChooseResume(files, CheckpointDirectory(), &job_.model));
    RETURN_IF_ERROR(CheckSameStart(files, choice, job_));
    return choice;
  }
  if (resume == "none") return ResumeChoice{};
  RETURN_IF_ERROR(CheckIsOfModel(files, resume, job_.model));
  RETURN_IF_ERROR(CheckParts(files, resume));
  return ResumeChoice{.path = resume};
}

void JobRunner::OnPlan(const PlanOutcome& outcome) {
  if (outcome.status.ok()) checkpoint_folders_ = outcome.folders;
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
  if (outcome.plan == nullptr) {
    OnSparePlaces();
    return;
  }
  const Plan& plan = *outcome.plan;
  made_plans_.Add(outcome.devices, outcome.plan);
  const bool again = plan_.has_value();
  std::vector<WorkerIdx> members = state_->Workers();
  const auto num_idle =
      static_cast<int32_t>(members.size()) - plan.layout.num_ranks();
  if (num_idle < 0) {
    Handle(PlanMade{});  // A host was lost meanwhile.
    return;
  }
  members.resize(plan.layout.num_ranks());
  const absl::StatusOr<ReplicaPlan> replicas = ReplicaPlanOf(
      plan.layout, plan.prediction.step_time_s, FailureDomains(members),
      plan.prediction.memory_bytes(), plan.snapshots);
  if (!replicas.ok()) {
    Handle(PlanRefused{std::string(replicas.status().message())});
    return;
  }
  replica_plan_ = *replicas;
  const std::string decision = SpareDecision(outcome.devices, plan);
  if (!decision.empty()) progress_->Line(decision);
  plan_ = {.layout = plan.layout,
           .num_devices = outcome.devices.num_devices,
           .step_time_s = plan.prediction.step_time_s,
           .memory_bytes = plan.prediction.memory_bytes(),
           .program_hashes = plan.program_hashes,
           .compute_s = ComputeSecondsOf(plan),
           .snapshots = plan.snapshots,
           .keeps_standbys = plan.keeps_standbys,
           .ranks_per_host = Devices().ranks_per_host,
           .resume_path = again ? plan_->resume_path : outcome.resume.path,
           .members = members,
           .devices_by_agent = state_->DevicesByAgent(),
           .left_out = state_->LeftOutDevices()};
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
      num_idle == 0 ? "" : absl::StrCat("; ", num_idle, " devices stay idle"),
      outcome.devices.num_spare_devices == 0
          ? ""
          : absl::StrCat(", ", outcome.devices.num_spare_devices,
                         " of them on spare hosts")));
  // Those of a plan before this one may be in its way.
  if (!plan_->keeps_standbys) TellOfStandbys(false);
  if (plan_->snapshots.has_value()) {
    progress_->Line(absl::StrCat("snapshots of the state: ",
                                 SnapshotText(*plan_->snapshots)));
  }
  for (const std::string& warning :
       {SlowWriteWarning(job_.checkpoint, replica_plan_->part_bytes,
                         plan_->step_time_s),
        replica_plan_->warning}) {
    if (!warning.empty()) progress_->Line(absl::StrCat("warning: ", warning));
  }
  progress_->Line(
      absl::StrCat("copies in memory: ", replica_plan_->description));
  if (again) {
    Handle(PlanMade{members, absl::Seconds(plan_->step_time_s)});
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
  Handle(PlanMade{members, absl::Seconds(plan_->step_time_s)});
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
  const DeviceFacts devices = Devices(/*all_ready=*/true);
  if (job_.fault.spare_hosts > 0 && devices.num_devices == plan_->num_devices) {
    progress_->Line("as many hosts train as the job asks for, so it is spare");
    return;
  }
  if (const auto made = made_plans_.Find(devices); made != nullptr) {
    OnGrowthPlan(action.generation, devices, made);
    return;
  }
  BeginPlanning([this, generation = action.generation, devices,
                 job = JobToPlan(),
                 profile = *profile_](const std::stop_token& stop) {
    const auto plan = PlanOnly(job, devices, profile, stop);
    // Another plan is needed by now.
    if (stop.stop_requested()) return;
    server_->Post([this, generation, devices, plan] {
      OnGrowthPlan(generation, devices, plan);
    });
  });
}

void JobRunner::OnGrowthPlan(
    Generation generation, const DeviceFacts& devices,
    const absl::StatusOr<std::shared_ptr<const Plan>>& plan) {
  if (plan.ok()) made_plans_.Add(devices, *plan);
  if (generation != state_->generation()) return;
  if (!plan.ok()) {
    progress_->Line(
        absl::StrCat("not taking it in: ", plan.status().message()));
    return;
  }
  const double now_s = plan_->step_time_s;
  const double then_s = (*plan)->prediction.step_time_s;
  const int64_t steps_left = job_.training.num_steps - output_->last_step();
  const double gained_s = static_cast<double>(steps_left) * (now_s - then_s);
  const double cost_s = last_recovery_s_;
  const bool is_worthwhile =
      gained_s > cost_s || job_.fault.take_in_hosts == "always";
  progress_->Line(absl::StrCat(
      "with all devices a step would take ", FormatSeconds(then_s), ", not ",
      FormatSeconds(now_s), ": ", FormatSeconds(gained_s), " over the ",
      steps_left, " steps left, at a cost of ", FormatSeconds(cost_s),
      is_worthwhile ? "; taking them in with the state in memory"
                    : "; going on without them"));
  Handle(GrowthWeighed{generation, is_worthwhile});
}

}  // namespace millrace
