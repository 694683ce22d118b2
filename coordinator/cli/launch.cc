#include "coordinator/cli/launch.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/cli/meeting.h"
#include "coordinator/cli/visit.h"
#include "planner/frameworks/model_folder.h"
#include "planner/job/executable.h"
#include "planner/profile/shipped_profiles.h"
#include "worker/agent/agent.h"
#include "worker/agent/host_job.h"
#include "worker/agent/run_directory.h"
#include "worker/backend/agent_devices.h"
#include "worker/train/starting_weights.h"

namespace millrace {
namespace {

// Before a minute is spent on measuring what could not be kept.
absl::Status CheckProfileOutput(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  if (IsShippedProfile(path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--output ", path,
        " is one of the profiles that come with Millrace, "
        "which are never overwritten; name a file outside configs/hardware"));
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--output ", path,
                     " is a folder; name the file of the profile, for example ",
                     path, "/measured.yaml"));
  }
  return absl::OkStatus();
}

absl::StatusOr<JobSpec> ReadJob(const LaunchOptions& options) {
  JobSpec job;
  ASSIGN_OR_RETURN(job, LoadJobWithFolder(options.job_file));
  // Before there is a run directory.
  if (const absl::Status status = CheckExecutable(job); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.job_file, ": ", status.message()));
  }
  if (options.tune && !job.resources.uses_cuda()) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.job_file, ": resources.backend is ", job.resources.backend,
        ", whose kernels leave nothing to be tuned; profile it without "
        "--tune"));
  }
  RETURN_IF_ERROR(CheckProfileOutput(options.profile_output));
  if (options.num_devices.has_value()) {
    job.resources.devices_per_agent = *options.num_devices;
  }
  if (options.profile_only) {
    job.name += "-profile";
    // Ops are timed on random numbers, so neither text nor weights need to be
    // there.
    job.data = {.synthetic = true};
    job.model_from.clear();
    job.model_fingerprint.clear();
  }
  if (const absl::Status status = CheckStartingWeights(job); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.job_file, ": ", status.message()));
  }
  return job;
}

HostShare ShareOf(const AgentPlace& place) {
  return {.num_agents = place.AgentsOnThisHost(),
          .agent_idx = place.IndexOnThisHost()};
}

// Hosts are not known yet, but there are no more of them than agents.
absl::Status CheckSpares(const LaunchOptions& options, const JobSpec& job,
                         int32_t num_agents) {
  const int32_t num_spares = job.fault.spare_hosts;
  if (num_spares < num_agents || options.profile_only) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      options.job_file, ": fault.spare_hosts is ", num_spares,
      ", and the job has ", num_agents, num_agents == 1 ? " agent" : " agents",
      ", of which one at least trains; start one on each of at least ",
      num_spares + 1, " hosts, or set it to ",
      num_agents == 1 ? "" : absl::StrCat(num_agents - 1, " or "), "0"));
}

absl::Status CheckKeepers(const LaunchOptions& options, const JobSpec& job,
                          int32_t num_agents) {
  const int32_t num_keepers = job.fault.coordinator_replicas;
  if (num_keepers <= num_agents || options.profile_only) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      options.job_file, ": fault.coordinator_replicas is ", num_keepers,
      ", and the job has ", num_agents, num_agents == 1 ? " agent" : " agents",
      "; start one on each of at least ", num_keepers,
      " hosts, or set it to 0"));
}

// Everything that agent 0 creates before the others can join.
struct Opening {
  JobSpec job;
  AgentDevices devices;
  CoordinatorStart coordinator;
};

absl::StatusOr<Opening> Open(const LaunchOptions& options,
                             const AgentPlace& place, int32_t port) {
  JobSpec job;
  ASSIGN_OR_RETURN(job, ReadJob(options));
  RETURN_IF_ERROR(CheckKeepers(options, job, place.num_agents));
  RETURN_IF_ERROR(CheckSpares(options, job, place.num_agents));
  AgentDevices devices;
  ASSIGN_OR_RETURN(devices, FindDevices(job.resources, ShareOf(place)));
  absl::StatusOr<Listener> made = ListenForAgents(job.network, place, port);
  if (!made.ok()) return made.status();
  std::string run_directory;
  ASSIGN_OR_RETURN(run_directory, CreateRunDirectory(job, absl::Now()));
  // For who looks at the run; it tells no secret.
  RETURN_IF_ERROR(WriteFileAtomically(run_directory + "/" + kAddressFile,
                                      made->address() + "\n"));
  return Opening{.job = std::move(job),
                 .devices = std::move(devices),
                 .coordinator = {.listener = *std::move(made),
                                 .run_directory = run_directory,
                                 .job_file = options.job_file,
                                 .profile_only = options.profile_only,
                                 .profile_output = options.profile_output,
                                 .tune = options.tune,
                                 .hosts = HostsOf(place),
                                 .join_timeout = JoinTimeout(options.meeting)}};
}

// Another host's copy. It need not be there, since agent 0's is sent to all.
absl::StatusOr<JobSpec> ReadCopy(const LaunchOptions& options) {
  if (!FileExists(options.job_file)) return absl::NotFoundError("no copy");
  absl::StatusOr<JobSpec> copy = ReadJob(options);
  if (absl::IsNotFound(copy.status())) {
    return absl::InvalidArgumentError(copy.status().message());
  }
  return copy;
}

}  // namespace

int Launch(LaunchOptions options) {
  const PrivateFiles private_files;
  BlockAgentSignals();
  std::optional<Opening> opening;
  const auto open = [&](const AgentPlace& place,
                        int32_t port) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(opening, Open(options, place, port));
    return opening->coordinator.listener.address();
  };
  const absl::StatusOr<Meeting> met = Meet(options.meeting, open);
  if (!met.ok()) return Fail(met.status());
  if (met->exit_code.has_value()) return *met->exit_code;
  AgentOptions agent = {.agent_idx = met->place.agent_idx,
                        .num_agents = met->place.num_agents,
                        .host = HostName(),
                        .share = ShareOf(met->place),
                        .coordinator_address = met->address,
                        .secret = met->secret};
  if (agent.agent_idx == 0) {
    agent.job = std::move(opening->job);
    agent.devices = std::move(opening->devices);
    agent.coordinator.emplace(std::move(opening->coordinator));
    PrintHowToJoin(options.meeting, *met, "agent");
  } else {
    agent.job = ReadCopy(options);
  }
  agent.launched = HasLauncher(options.meeting);
  return RunAgent(std::move(agent));
}

}  // namespace millrace
