#include "coordinator/cli/launch.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/protocol/secret.h"
#include "planner/frameworks/model_folder.h"
#include "planner/job/executable.h"
#include "planner/job/subnet.h"
#include "planner/profile/shipped_profiles.h"
#include "worker/agent/agent.h"
#include "worker/agent/host_job.h"
#include "worker/agent/listener.h"
#include "worker/agent/network.h"
#include "worker/agent/run_directory.h"
#include "worker/agent/slurm_start.h"
#include "worker/backend/agent_devices.h"
#include "worker/train/starting_weights.h"

namespace millrace {
namespace {

constexpr int kFailure = 1;
// How long the name of agent 0's host may stay unknown.
constexpr absl::Duration kNameLimit = absl::Seconds(30);
constexpr absl::Duration kNamePause = absl::Milliseconds(500);
constexpr char kExitWord[] = "exit";
// Where agents of one host meet.
constexpr char kThisHost[] = "127.0.0.1";

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

HostShare ShareOf(const AgentPlace& place) {
  return {.num_agents = place.AgentsOnThisHost(),
          .agent_idx = place.IndexOnThisHost()};
}

std::string HostName() {
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return host;
}

// By agent, as far as they are known.
std::vector<std::string> HostsOf(const AgentPlace& place) {
  if (!place.hosts.empty() || place.num_agents == 1) return place.hosts;
  return {HostName()};
}

// People need longer to start agents than launchers.
absl::Duration JoinTimeout(const LaunchOptions& options) {
  return options.num_agents.has_value() ? absl::Minutes(10) : absl::Minutes(1);
}

// Everything that agent 0 creates before the others can join.
struct Opening {
  JobSpec job;
  AgentDevices devices;
  CoordinatorStart coordinator;
  std::string secret;
};
absl::StatusOr<Listener> Listen(const NetworkSpec& network,
                                const ListenerPorts& ports,
                                const AgentPlace& place) {
  if (!place.SeveralHosts()) return Listener::Create({kThisHost}, ports);
  ASSIGN_OR_RETURN(const std::vector<HostAddress> all, HostAddresses());
  ASSIGN_OR_RETURN(const std::vector<HostAddress> usable,
                   UsableAddresses(network, all));
  std::vector<std::string> addresses;
  for (const HostAddress& address : usable) {
    addresses.push_back(address.address);
  }
  if (ports.range.first != 0 || network.ports.empty()) {
    return Listener::Create(addresses, ports);
  }
  // The job was read: they are ports.
  return Listener::Create(addresses, {.range = *ParsePorts(network.ports),
                                      .origin = "network.ports"});
}

absl::StatusOr<Opening> Open(const LaunchOptions& options,
                             const AgentPlace& place,
                             const std::string& secret) {
  JobSpec job;
  ASSIGN_OR_RETURN(job, ReadJob(options));
  AgentDevices devices;
  ASSIGN_OR_RETURN(devices, FindDevices(job.resources, ShareOf(place)));
  ListenerPorts ports;
  if (options.port != 0) {
    ports = {.range = {.first = options.port, .last = options.port},
             .origin = options.port_origin};
  }
  absl::StatusOr<Listener> made = Listen(job.network, ports, place);
  if (!made.ok()) return made.status();
  std::string run_directory;
  ASSIGN_OR_RETURN(run_directory, CreateRunDirectory(job, absl::Now()));
  return Opening{.job = std::move(job),
                 .devices = std::move(devices),
                 .coordinator = {.listener = *std::move(made),
                                 .run_directory = run_directory,
                                 .job_file = options.job_file,
                                 .profile_only = options.profile_only,
                                 .profile_output = options.profile_output,
                                 .tune = options.tune,
                                 .hosts = HostsOf(place),
                                 .join_timeout = JoinTimeout(options)},
                 .secret = secret};
}

// The secret that the user gives, else a new one, which the launcher's channel
// takes to the other agents.
absl::StatusOr<std::string> SecretOfLauncher(const LaunchOptions& options) {
  const char* variable = std::getenv(kSecretVariable);
  if (options.secret_file.empty() &&
      (variable == nullptr || *variable == '\0')) {
    return MakeSecret();
  }
  return GivenSecret(options.secret_file);
}

// Cancelled by a signal to stop, which BlockAgentSignals() holds back.
absl::Status Pause(absl::Duration duration) {
  sigset_t signals;
  sigemptyset(&signals);
  for (int number : {SIGINT, SIGTERM}) sigaddset(&signals, number);
  const timespec limit = absl::ToTimespec(duration);
  if (sigtimedwait(&signals, nullptr, &limit) < 0) return absl::OkStatus();
  return absl::CancelledError("stopped by a signal");
}

// Waits for the name of agent 0's host to be known, as a client then waits for
// agent 0 to listen: a pod of Kubernetes has a name only once it runs.
absl::StatusOr<std::string> AnnouncementOf(const std::string& host_and_port,
                                           const std::string& secret) {
  const absl::Time began = MonotonicNow();
  absl::StatusOr<std::string> addresses = ResolveAddress(host_and_port);
  if (absl::IsUnavailable(addresses.status())) {
    std::cerr << "millrace: " << addresses.status().message()
              << "; trying again for " << absl::FormatDuration(kNameLimit)
              << std::endl;
  }
  while (absl::IsUnavailable(addresses.status()) &&
         MonotonicNow() - began < kNameLimit) {
    RETURN_IF_ERROR(Pause(kNamePause));
    addresses = ResolveAddress(host_and_port);
  }
  if (!addresses.ok()) return addresses.status();
  return absl::StrCat(*addresses, " ", secret);
}

// The agents' places and where agent 0 is; `announce` as in mpi_start.h, with
// the job's secret.
using Announce = std::function<std::string(
    const AgentPlace&, const absl::StatusOr<std::string>& secret)>;

absl::StatusOr<AgentStart> Join(const LaunchOptions& options) {
  AgentStart start;
  start.place.agent_idx = -1;
  ASSIGN_OR_RETURN(const std::string secret, GivenSecret(options.secret_file));
  ASSIGN_OR_RETURN(start.announcement, AnnouncementOf(options.join, secret));
  return start;
}

absl::StatusOr<AgentStart> BeFirst(const LaunchOptions& options,
                                   const Announce& announce) {
  AgentStart start;
  start.place.num_agents = *options.num_agents;
  ASSIGN_OR_RETURN(const std::string secret, GivenSecret(options.secret_file));
  start.announcement = announce(start.place, secret);
  return start;
}

absl::StatusOr<AgentStart> MeetUnderSlurm(LaunchOptions* options,
                                          const SlurmStart& slurm,
                                          const Announce& announce) {
  absl::StatusOr<std::string> secret = GivenSecret(options->secret_file);
  if (!secret.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "srun started ", slurm.place.num_agents, " agents without PMIx, and ",
        secret.status().message(), "; or use srun --mpi=pmix, or mpirun"));
  }
  AgentStart start = {.place = slurm.place};
  if (slurm.place.agent_idx == 0) {
    options->port = slurm.port;
    options->port_origin = "the port of this Slurm step";
    start.announcement = announce(slurm.place, *secret);
  } else {
    const std::string host =
        slurm.place.SeveralHosts() ? slurm.first_node : kThisHost;
    ASSIGN_OR_RETURN(
        start.announcement,
        AnnouncementOf(absl::StrCat(host, ":", slurm.port), *secret));
  }
  return start;
}

absl::StatusOr<AgentStart> Meet(LaunchOptions* options,
                                const Announce& announce) {
  if (!options->join.empty()) return Join(*options);
  if (options->num_agents.has_value()) return BeFirst(*options, announce);
  const auto announce_alone = [&](const AgentPlace& place) {
    return announce(place, SecretOfLauncher(*options));
  };
  if (!options->under_mpi) {
    AgentStart start;
    start.announcement = announce_alone(start.place);
    return start;
  }
  std::optional<SlurmStart> slurm;
  ASSIGN_OR_RETURN(slurm, StartUnderSlurm([](const char* name) -> const char* {
                     return std::getenv(name);
                   }));
  if (slurm.has_value()) return MeetUnderSlurm(options, *slurm, announce);
  return StartUnderMpi(announce_alone);
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

// mpirun or srun, whose signals end the job; not a shell, which people leave.
bool HasLauncher(const LaunchOptions& options) {
  if (!options.under_mpi || !options.join.empty() ||
      options.num_agents.has_value()) {
    return false;
  }
  for (const char* variable :
       {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return false;
}

}  // namespace

int Launch(LaunchOptions options) {
  const PrivateFiles private_files;
  BlockAgentSignals();
  absl::StatusOr<Opening> opening = absl::UnavailableError("not made");
  // Agent 0 announces "address secret", or "exit CODE" if there is nothing to
  // join, after saying why.
  const auto announce =
      [&](const AgentPlace& place,
          const absl::StatusOr<std::string>& secret) -> std::string {
    opening = secret.ok() ? Open(options, place, *secret)
                          : absl::StatusOr<Opening>(secret.status());
    if (!opening.ok()) {
      return absl::StrCat(kExitWord, " ", Fail(opening.status()));
    }
    return absl::StrCat(opening->coordinator.listener.address(), " ",
                        opening->secret);
  };
  const absl::StatusOr<AgentStart> met = Meet(&options, announce);
  if (!met.ok()) return Fail(met.status());
  const AgentStart& start = *met;
  const std::vector<std::string> words =
      absl::StrSplit(start.announcement, ' ');
  if (words.size() != 2) return Fail(absl::InternalError("no announcement"));
  int exit_code = kFailure;
  if (words[0] == kExitWord) {
    return absl::SimpleAtoi(words[1], &exit_code) ? exit_code : kFailure;
  }
  AgentOptions agent = {.agent_idx = start.place.agent_idx,
                        .num_agents = start.place.num_agents,
                        .host = HostName(),
                        .share = ShareOf(start.place),
                        .coordinator_address = words[0],
                        .secret = words[1]};
  if (agent.agent_idx == 0) {
    agent.job = std::move(opening->job);
    agent.devices = std::move(opening->devices);
    agent.coordinator.emplace(std::move(opening->coordinator));
    if (options.num_agents.has_value()) {
      std::cout << "waiting for " << *options.num_agents - 1
                << " more agents at " << words[0]
                << "; on each of their hosts: millrace agent --join "
                << agent.host << ":" << words[0].substr(words[0].rfind(':') + 1)
                << (options.secret_file.empty() ? "" : " --secret-file FILE")
                << std::endl;
    }
  } else {
    agent.job = ReadCopy(options);
  }
  agent.launched = HasLauncher(options);
  return RunAgent(std::move(agent));
}

}  // namespace millrace
