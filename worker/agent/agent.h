// An agent: starts this host's workers, sees their death at once, replaces them
// on order, and passes the user's signals on. Agent 0 also starts the
// coordinator, and starts it again if it dies, within restart_budget.h.

#ifndef MILLRACE_WORKER_AGENT_AGENT_H_
#define MILLRACE_WORKER_AGENT_AGENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "planner/job/job.h"
#include "worker/agent/listener.h"
#include "worker/backend/agent_devices.h"

namespace millrace {

// Held by agent 0 only.
struct CoordinatorStart {
  Listener listener;
  std::string run_directory;
  std::string job_file;  // The path that the user gave.
  bool profile_only = false;
  std::string profile_output;      // With profile_only. Empty: the cache.
  bool tune = false;               // With profile_only.
  std::vector<std::string> hosts;  // By agent.
  absl::Duration join_timeout = absl::Seconds(60);  // For the others to come.
};

struct AgentOptions {
  int32_t agent_idx = 0;  // -1: the coordinator gives one.
  int32_t num_agents = 1;
  std::string host;
  HostShare share;  // This agent's, among those of its host.
  std::string coordinator_address;
  std::string secret;
  // Agent 0's job, or another host's copy of it: NotFound where there is none.
  absl::StatusOr<JobSpec> job = absl::NotFoundError("no copy");
  std::optional<AgentDevices> devices;  // Absent: to be found.
  std::optional<CoordinatorStart> coordinator;
  bool launched = false;  // By mpirun or srun, which signals the agent.
};

// Blocks SIGINT, SIGTERM, SIGUSR1 and SIGCHLD for this thread and those it
// starts later, so that the agent can wait for them together with everything
// else. To be called before other threads exist.
void BlockAgentSignals();

// Runs until the job is over. Returns the exit code that the coordinator gave.
// Messages for people go to standard error. If its preparation of data cannot
// be waited for, it exits the process instead of returning.
int RunAgent(AgentOptions options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_AGENT_H_
