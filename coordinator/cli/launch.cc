#include "coordinator/cli/launch.h"

#include <unistd.h>

#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "coordinator/protocol/secret.h"
#include "planner/job_file.h"
#include "worker/agent.h"
#include "worker/listener.h"
#include "worker/machine.h"
#include "worker/run_directory.h"

namespace millrace {
namespace {

constexpr int kBadInput = 2;
constexpr int kFailure = 1;

int Fail(const absl::Status& status) {
  std::cerr << "millrace: " << status.message() << std::endl;
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? kBadInput
                                                                     : kFailure;
}

absl::StatusOr<JobSpec> ReadJob(const LaunchOptions& options) {
  JobSpec job;
  ASSIGN_OR_RETURN(job, LoadJob(options.job_file));
  if (options.num_devices.has_value()) {
    job.resources.devices_per_agent = *options.num_devices;
  }
  if (options.profile_only) job.name += "-profile";
  return job;
}

// What agent 0 makes before the others can join.
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
                  .profile_only = options.profile_only},
                 secret};
}

int RunPlacedAgent(const JobSpec& job, const AgentPlace& place,
                   const std::string& address, const std::string& secret,
                   std::optional<CoordinatorStart> coordinator) {
  const absl::StatusOr<Machine> machine = DescribeMachine();
  if (!machine.ok()) return Fail(machine.status());
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return RunAgent({.agent_idx = place.agent_idx,
                   .num_agents = place.num_agents,
                   .host = host,
                   .coordinator_address = address,
                   .secret = secret,
                   .job = job,
                   .devices = ShareDevices(job.resources, machine->num_cores,
                                           place.AgentsOnThisHost()),
                   .machine = machine->Fingerprint(),
                   .machine_description = machine->Description(),
                   .memory_bytes = machine->memory_bytes,
                   .coordinator = std::move(coordinator)});
}

}  // namespace

int Launch(const LaunchOptions& options) {
  BlockAgentSignals();
  absl::StatusOr<JobSpec> job = absl::UnavailableError("not read");
  absl::StatusOr<Opening> opening = absl::UnavailableError("not made");
  // Agent 0 announces "address secret", or nothing if there is nothing to join.
  const auto announce = [&](const AgentPlace& place) -> std::string {
    job = ReadJob(options);
    if (!job.ok()) return "";
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
  if (start.announcement.empty()) {
    return is_first ? Fail(opening.status()) : kFailure;
  }
  const std::vector<std::string> words =
      absl::StrSplit(start.announcement, ' ');
  std::optional<CoordinatorStart> coordinator;
  if (is_first) coordinator.emplace(std::move(opening->coordinator));
  return RunPlacedAgent(*job, start.place, words[0], words[1],
                        std::move(coordinator));
}

}  // namespace millrace
