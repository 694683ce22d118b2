#include "coordinator/cli/launch.h"

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/protocol/secret.h"
#include "planner/frameworks/model_folder.h"
#include "planner/job/executable.h"
#include "planner/profile/shipped_profiles.h"
#include "worker/agent/agent.h"
#include "worker/agent/listener.h"
#include "worker/agent/run_directory.h"
#include "worker/backend/agent_devices.h"
#include "worker/train/starting_weights.h"

namespace millrace {
namespace {

constexpr int kFailure = 1;

int Fail(const absl::Status& status) {
  std::cerr << "millrace: " << status.message() << std::endl;
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? kBadInput
                                                                     : kFailure;
}

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

// Everything that agent 0 creates before the others can join.
struct Opening {
  CoordinatorStart coordinator;
  std::string secret;
};
absl::StatusOr<Opening> Open(const LaunchOptions& options, const JobSpec& job,
                             const AgentPlace& place) {
  std::string secret;
  ASSIGN_OR_RETURN(secret, MakeSecret());
  absl::StatusOr<Listener> made = Listener::Create(place.SeveralHosts());
  if (!made.ok()) return made.status();
  std::string run_directory;
  ASSIGN_OR_RETURN(run_directory, CreateRunDirectory(job, absl::Now()));
  return Opening{{.listener = *std::move(made),
                  .run_directory = run_directory,
                  .job_file = options.job_file,
                  .profile_only = options.profile_only,
                  .profile_output = options.profile_output,
                  .tune = options.tune},
                 secret};
}

absl::StatusOr<AgentDevices> FindDevices(const JobSpec& job,
                                         const AgentPlace& place) {
  std::vector<std::string> warnings;
  ASSIGN_OR_RETURN(AgentDevices devices,
                   FindAgentDevices(job.resources,
                                    {.num_agents = place.AgentsOnThisHost(),
                                     .agent_idx = place.IndexOnThisHost()},
                                    &warnings));
  for (const std::string& warning : warnings) {
    std::cerr << "millrace: warning: " << warning << std::endl;
  }
  return devices;
}

}  // namespace

int Launch(const LaunchOptions& options) {
  const PrivateFiles private_files;
  BlockAgentSignals();
  absl::StatusOr<JobSpec> job = absl::UnavailableError("not read");
  absl::StatusOr<AgentDevices> devices = absl::UnavailableError("not found");
  absl::StatusOr<Opening> opening = absl::UnavailableError("not made");
  // Agent 0 announces "address secret", or nothing if there is nothing to join.
  const auto announce = [&](const AgentPlace& place) -> std::string {
    job = ReadJob(options);
    if (!job.ok()) return "";
    devices = FindDevices(*job, place);
    if (!devices.ok()) return "";
    opening = Open(options, *job, place);
    if (!opening.ok()) return "";
    return absl::StrCat(opening->coordinator.listener.address(), " ",
                        opening->secret);
  };
  AgentStart start;
  if (options.under_mpi) {
    absl::StatusOr<AgentStart> started = StartUnderMpi(announce);
    if (!started.ok()) return Fail(started.status());
    start = *std::move(started);
  } else {
    start.announcement = announce(start.place);
  }
  const bool is_first = start.place.agent_idx == 0;
  if (!is_first) job = ReadJob(options);
  if (!job.ok()) return is_first ? Fail(job.status()) : kBadInput;
  if (!is_first && !start.announcement.empty()) {
    devices = FindDevices(*job, start.place);
  }
  if (start.announcement.empty() && !is_first) return kFailure;
  if (!devices.ok()) return Fail(devices.status());
  if (start.announcement.empty()) return Fail(opening.status());
  const std::vector<std::string> words =
      absl::StrSplit(start.announcement, ' ');
  std::optional<CoordinatorStart> coordinator;
  if (is_first) coordinator.emplace(std::move(opening->coordinator));
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return RunAgent({.agent_idx = start.place.agent_idx,
                   .num_agents = start.place.num_agents,
                   .host = host,
                   .coordinator_address = words[0],
                   .secret = words[1],
                   .job = *std::move(job),
                   .devices = *std::move(devices),
                   .coordinator = std::move(coordinator)});
}

}  // namespace millrace
