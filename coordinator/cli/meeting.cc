#include "coordinator/cli/meeting.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/cli/launch.h"
#include "coordinator/protocol/secret.h"
#include "planner/job/subnet.h"
#include "worker/agent/network.h"
#include "worker/agent/slurm_start.h"

namespace millrace {
namespace {

constexpr int kFailure = 1;
constexpr char kExitWord[] = "exit";
// In the place of the secret: each agent reads its own file.
constexpr char kFileWord[] = "file";
// How long the name of agent 0's host may stay unknown.
constexpr absl::Duration kNameLimit = absl::Seconds(30);
constexpr absl::Duration kNamePause = absl::Milliseconds(500);
// Where agents of one host meet.
constexpr char kThisHost[] = "127.0.0.1";

// The secret that the user gives, else a new one, which the launcher's channel
// takes to the other agents.
absl::StatusOr<std::string> SecretOfLauncher(const MeetingOptions& options) {
  const char* variable = std::getenv(kSecretVariable);
  if (options.secret_file.empty() &&
      (variable == nullptr || *variable == '\0')) {
    return MakeSecret();
  }
  return GivenSecret(options.secret_file);
}

// Cancelled by a signal to stop, where the command holds signals back
// (BlockAgentSignals()).
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

// Agent 0's words to the others, with the job's secret and the port.
using Announce = std::function<std::string(
    const AgentPlace&, const absl::StatusOr<std::string>& secret,
    int32_t port)>;

absl::StatusOr<AgentStart> Join(const MeetingOptions& options) {
  AgentStart start;
  start.place.agent_idx = -1;
  ASSIGN_OR_RETURN(const std::string secret, GivenSecret(options.secret_file));
  ASSIGN_OR_RETURN(start.announcement, AnnouncementOf(options.join, secret));
  return start;
}

absl::StatusOr<AgentStart> BeFirst(const MeetingOptions& options,
                                   const Announce& announce) {
  AgentStart start;
  start.place.num_agents = *options.num_agents;
  ASSIGN_OR_RETURN(const std::string secret, GivenSecret(options.secret_file));
  start.announcement = announce(start.place, secret, options.port);
  return start;
}

absl::StatusOr<AgentStart> MeetUnderSlurm(const MeetingOptions& options,
                                          const SlurmStart& slurm,
                                          const Announce& announce) {
  absl::StatusOr<std::string> secret = GivenSecret(options.secret_file);
  if (!secret.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "srun started ", slurm.place.num_agents, " agents without PMIx, and ",
        secret.status().message(), "; or use srun --mpi=pmix, or mpirun"));
  }
  AgentStart start = {.place = slurm.place};
  if (slurm.place.agent_idx == 0) {
    start.announcement = announce(slurm.place, *secret, slurm.port);
  } else {
    const std::string host =
        slurm.place.SeveralHosts() ? slurm.first_node : kThisHost;
    ASSIGN_OR_RETURN(
        start.announcement,
        AnnouncementOf(absl::StrCat(host, ":", slurm.port), *secret));
  }
  return start;
}

absl::StatusOr<AgentStart> MeetBy(const MeetingOptions& options,
                                  const Announce& announce) {
  if (!options.join.empty()) return Join(options);
  if (options.num_agents.has_value()) return BeFirst(options, announce);
  const auto announce_alone = [&](const AgentPlace& place) {
    return announce(place, SecretOfLauncher(options), options.port);
  };
  if (!options.under_mpi) {
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

int ExitCodeOf(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? kBadInput
                                                                     : kFailure;
}

}  // namespace

void AddMeetingOptions(CLI::App* command, MeetingOptions* options) {
  CLI::Option* agents =
      command
          ->add_option("--agents", options->num_agents,
                       "Without a launcher: agent 0 of so many, one a host")
          ->check(CLI::Range(2, 100000));
  command
      ->add_option("--port", options->port,
                   "With --agents: listen here, instead of network.ports")
      ->check(CLI::Range(1, 65535))
      ->needs(agents);
  command
      ->add_option("--join", options->join,
                   "Without a launcher: HOST:PORT where agent 0 listens")
      ->excludes(agents);
  command->add_option("--secret-file", options->secret_file,
                      "The job's secret, which --agents, --join and srun "
                      "without PMIx need; else the environment variable "
                      "MILLRACE_SECRET");
}

absl::StatusOr<Meeting> Meet(
    const MeetingOptions& options,
    const std::function<absl::StatusOr<std::string>(const AgentPlace& place,
                                                    int32_t port)>& open) {
  absl::StatusOr<std::string> opened = absl::UnavailableError("not made");
  // Agent 0 announces "address secret", or "exit CODE" if there is nothing to
  // join. A secret that all read from a file need not pass over the network.
  const auto announce = [&](const AgentPlace& place,
                            const absl::StatusOr<std::string>& secret,
                            int32_t port) -> std::string {
    opened = secret.ok() ? open(place, port) : secret.status();
    if (opened.ok()) {
      return absl::StrCat(*opened, " ",
                          options.secret_file.empty() ? *secret : kFileWord);
    }
    return absl::StrCat(kExitWord, " ", ExitCodeOf(opened.status()));
  };
  ASSIGN_OR_RETURN(const AgentStart start, MeetBy(options, announce));
  if (start.place.agent_idx == 0) RETURN_IF_ERROR(opened.status());
  const std::vector<std::string> words =
      absl::StrSplit(start.announcement, ' ');
  if (words.size() != 2) return absl::InternalError("no announcement");
  Meeting meeting = {.place = start.place};
  if (words[0] == kExitWord) {
    int exit_code = kFailure;
    meeting.exit_code =
        absl::SimpleAtoi(words[1], &exit_code) ? exit_code : kFailure;
    return meeting;
  }
  meeting.address = words[0];
  meeting.secret = words[1];
  if (meeting.secret == kFileWord) {
    ASSIGN_OR_RETURN(meeting.secret, GivenSecret(options.secret_file));
  }
  return meeting;
}

absl::StatusOr<Listener> ListenForAgents(const NetworkSpec& network,
                                         const AgentPlace& place,
                                         int32_t port) {
  ListenerPorts ports;
  if (port != 0) {
    ports = {.range = {.first = port, .last = port},
             .origin = "by --port or Slurm's step"};
  }
  if (!place.SeveralHosts()) return Listener::Create({kThisHost}, ports);
  ASSIGN_OR_RETURN(const std::vector<HostAddress> all, HostAddresses());
  ASSIGN_OR_RETURN(const std::vector<HostAddress> usable,
                   UsableAddresses(network, all));
  std::vector<std::string> addresses;
  for (const HostAddress& address : usable) {
    addresses.push_back(address.address);
  }
  if (port == 0 && !network.ports.empty()) {
    // The job was read: they are ports.
    ports = {.range = *ParsePorts(network.ports), .origin = "network.ports"};
  }
  return Listener::Create(addresses, ports);
}

bool IsLaunched() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                               "SLURM_STEP_NUM_TASKS"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return false;
}

bool HasLauncher(const MeetingOptions& options) {
  if (!options.under_mpi || !options.join.empty() ||
      options.num_agents.has_value()) {
    return false;
  }
  return IsLaunched();
}

void PrintHowToJoin(const MeetingOptions& options, const Meeting& meeting,
                    const std::string& command) {
  if (!options.num_agents.has_value() || meeting.place.agent_idx != 0) return;
  std::cout << "waiting for " << *options.num_agents - 1 << " more agents at "
            << meeting.address << "; on each of their hosts: millrace "
            << command << " --join " << HostName() << ":"
            << meeting.address.substr(meeting.address.rfind(':') + 1)
            << (options.secret_file.empty() ? "" : " --secret-file FILE")
            << std::endl;
}

absl::Duration JoinTimeout(const MeetingOptions& options) {
  return options.num_agents.has_value() ? absl::Minutes(10) : absl::Minutes(1);
}

std::string HostName() {
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return host;
}

std::vector<std::string> HostsOf(const AgentPlace& place) {
  if (!place.hosts.empty() || place.num_agents == 1) return place.hosts;
  return {HostName()};
}

int Fail(const absl::Status& status) {
  std::cerr << "millrace: " << status.message() << std::endl;
  return ExitCodeOf(status);
}

}  // namespace millrace
