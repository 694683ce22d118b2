// An agent: starts this host's workers, sees their death at once, replaces them
// on order, and passes the user's signals on. Agent 0 also starts the
// coordinator, and starts it again if it dies, within restart_budget.h.

#ifndef MILLRACE_WORKER_AGENT_H_
#define MILLRACE_WORKER_AGENT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/job.h"
#include "worker/listener.h"

namespace millrace {

// How many workers an agent starts, and with how many threads each.
struct AgentDevices {
  int32_t num_devices = 1;
  int32_t threads_per_device = 1;
  int32_t devices_on_host = 1;
};
// What the job leaves to us is shared out evenly: cores among the workers of
// all agents of the host. Without either figure, a worker for every core.
AgentDevices ShareDevices(const ResourceSpec& resources, int32_t num_cores,
                          int32_t agents_on_host);

// What agent 0 has and the others do not.
struct CoordinatorStart {
  Listener listener;
  std::string run_directory;
  std::string job_file;  // As the user named it.
  bool profile_only = false;
};

struct AgentOptions {
  int32_t agent_idx = 0;
  int32_t num_agents = 1;
  std::string host;
  std::string coordinator_address;
  std::string secret;
  JobSpec job;
  AgentDevices devices;
  std::string machine;  // Fingerprint, as in a profile.
  std::string machine_description;
  int64_t memory_bytes = 0;  // Of the host.
  std::optional<CoordinatorStart> coordinator;
};

// Blocks SIGINT, SIGTERM and SIGCHLD for this thread and those it starts later,
// so that the agent can wait for them together with everything else. To be
// called before other threads exist.
void BlockAgentSignals();

// Until the job is over. Returns the exit code that the coordinator gave; what
// people must know is on standard error. Does not return, but exits, if its
// preparation of data cannot be waited for.
int RunAgent(AgentOptions options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_H_
