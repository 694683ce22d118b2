#include "coordinator/cli/meeting.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

// Waits until a name of agent 0's host is known, as a client waits until it
// listens.
absl::StatusOr<std::string> AnnouncementOf(const std::string& host_and_port,
                                           const std::string& secret) {
  ASSIGN_OR_RETURN(const std::string addresses, ResolveAddress(host_and_port));
  return absl::StrCat(addresses, " ", secret);
}

// Agent 0's words to the others, with the secret that is given, if one is, and
// the port.
using Announce = std::function<std::string(
    const AgentPlace&, const std::string& secret, int32_t port)>;

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
    ASSIGN_OR_RETURN(
        start.announcement,
        AnnouncementOf(absl::StrCat(slurm.first_node, ":", slurm.port),
                       *secret));
  }
  return start;
}

absl::StatusOr<AgentStart> MeetBy(const MeetingOptions& options,
                                  const Announce& announce) {
  if (!options.join.empty()) return Join(options);
  if (options.num_agents.has_value()) return BeFirst(options, announce);
  const auto announce_alone = [&](const AgentPlace& place) {
    return announce(place, "", options.port);
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
                      "The job's secret, for --agents, --join and srun without "
                      "PMIx; else the environment variable MILLRACE_SECRET");
}

absl::StatusOr<Meeting> Meet(
    const MeetingOptions& options,
    const std::function<absl::StatusOr<std::string>(const AgentPlace& place,
                                                    int32_t port)>& open) {
  absl::StatusOr<std::string> opened = absl::UnavailableError("not made");
  // Agent 0 announces "address secret", or "exit CODE" if there is nothing to
  // join.
  const auto announce = [&](const AgentPlace& place,
                            const std::string& given_secret,
                            int32_t port) -> std::string {
    absl::StatusOr<std::string> secret = given_secret;
    if (given_secret.empty()) secret = MakeSecret();
    opened = secret.ok() ? open(place, port) : secret.status();
    if (opened.ok()) return absl::StrCat(*opened, " ", *secret);
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
  return meeting;
}

absl::StatusOr<Listener> ListenForAgents(const NetworkSpec& network,
                                         const AgentPlace& place,
                                         int32_t port) {
  if (!place.SeveralHosts()) return Listener::Create();
  ASSIGN_OR_RETURN(const std::vector<HostAddress> all, HostAddresses());
  ASSIGN_OR_RETURN(const std::vector<HostAddress> usable,
                   UsableAddresses(network, all));
  std::vector<std::string> addresses;
  for (const HostAddress& address : usable) {
    addresses.push_back(address.address);
  }
  if (port != 0) return Listener::Create(addresses, {port, port});
  // The job was read: they are ports.
  return Listener::Create(addresses, *ParsePorts(network.ports));
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
