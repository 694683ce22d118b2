// The one place that speaks MPI: the launcher gives the agents their numbers,
// they exchange a few facts once, and MPI is finalized before training begins,
// since a blocking MPI call with a dead peer never returns.

#ifndef MILLRACE_WORKER_AGENT_MPI_START_H_
#define MILLRACE_WORKER_AGENT_MPI_START_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

struct AgentPlace {
  int32_t agent_idx = 0;
  int32_t num_agents = 1;
  std::vector<std::string> hosts;  // Indexed by agent; empty if not known.
  // Stands for `hosts` where they are not known.
  int32_t agents_on_this_host = 1;
  int32_t idx_on_this_host = 0;

  int32_t AgentsOnThisHost() const;
  int32_t IndexOnThisHost() const;  // Among them, in the order of agent_idx.
  bool SeveralHosts() const;
};

struct AgentStart {
  AgentPlace place;
  std::string announcement;  // Agent 0's words, on every agent.
};

// Collective over all processes of the launcher; without one, a job of one
// agent. `announce` runs on agent 0 only; what it returns goes to all.
// Internal if MPI fails.
absl::StatusOr<AgentStart> StartUnderMpi(
    const std::function<std::string(const AgentPlace&)>& announce);

// "Open MPI v4.1.4": the library that this program has loaded.
std::string MpiLibrary();

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_MPI_START_H_
