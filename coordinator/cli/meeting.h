// How the processes of one command on several hosts find each other: by MPI, by
// Slurm's variables, or by an address that a person gives. `agent` and `doctor`
// both begin so.

#ifndef MILLRACE_COORDINATOR_CLI_MEETING_H_
#define MILLRACE_COORDINATOR_CLI_MEETING_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "planner/job/job.h"
#include "worker/agent/listener.h"
#include "worker/agent/mpi_start.h"

namespace millrace {

struct MeetingOptions {
  bool under_mpi = false;  // Ask MPI or Slurm who else there is.
  // Without a launcher: this is agent 0 of so many, listening at `port` if it
  // is not 0, or an agent that joins one at "HOST:PORT". At most one is given.
  std::optional<int32_t> num_agents;
  int32_t port = 0;
  std::string join;
  std::string secret_file;  // Empty: the environment's secret.
};

// Adds --agents, --port, --join and --secret-file to a command.
void AddMeetingOptions(CLI::App* command, MeetingOptions* options);

struct Meeting {
  AgentPlace place;     // agent_idx -1: agent 0's host gives one.
  std::string address;  // Where agent 0 listens, as a client takes it.
  std::string secret;
  // Agent 0 could not begin and has said why: end with this code.
  std::optional<int> exit_code;
};

// Meets the others. `open` runs on agent 0 only: it makes what others connect
// to, at `port` if that is not 0, and returns its address. Its error is agent
// 0's result, and all others end with that error's exit code.
absl::StatusOr<Meeting> Meet(const MeetingOptions& options,
                             const std::function<absl::StatusOr<std::string>(
                                 const AgentPlace& place, int32_t port)>& open);

// Listens where the other agents can reach this host: on the loopback address
// if they are all on this one. `port` 0: a port of network.ports.
absl::StatusOr<Listener> ListenForAgents(const NetworkSpec& network,
                                         const AgentPlace& place, int32_t port);

// Whether mpirun or srun started this process.
bool IsLaunched();
// Whether one of them has the agents meet, rather than a shell, which people
// leave.
bool HasLauncher(const MeetingOptions& options);

// Says to a person which command, such as "agent", the other hosts need.
void PrintHowToJoin(const MeetingOptions& options, const Meeting& meeting,
                    const std::string& command);

// How long agent 0 waits for the others: people need longer than launchers.
absl::Duration JoinTimeout(const MeetingOptions& options);

std::string HostName();
// By agent, as far as they are known.
std::vector<std::string> HostsOf(const AgentPlace& place);

// Prints an error that ends the program, and returns its exit code.
int Fail(const absl::Status& status);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_MEETING_H_
