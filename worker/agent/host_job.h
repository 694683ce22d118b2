// An agent's part of the coordinator's job: the job itself, the host's devices,
// and the folder where the host keeps its logs.

#ifndef MILLRACE_WORKER_AGENT_HOST_JOB_H_
#define MILLRACE_WORKER_AGENT_HOST_JOB_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/protocol/millrace.pb.h"
#include "planner/job/job.h"
#include "worker/agent/network.h"
#include "worker/backend/agent_devices.h"

namespace millrace {

struct HostJob {
  JobSpec job;
  int32_t num_agents = 1;
  AgentDevices devices;
  // The coordinator's, on agent 0's host; it tells one run from another.
  std::string run;
  // The same where this host sees it, else one of the host's own.
  std::string run_directory;
  // Where this host's part of checkpoints goes, without "/" at the end.
  std::string checkpoint_directory;
  std::vector<HostAddress> addresses;  // This host's.
  bool sees_run_directory = false;
  bool sees_checkpoints = false;
};

// `own_copy`: what this host's copy of the job file says; NotFound if it has
// none, which is fine. `devices`: if they are known already. Creates the host's
// run directory and prints warnings.
//
// Returns InvalidArgument if the copy cannot be read or says something else
// than the coordinator's job, and the errors of FindAgentDevices() and of the
// job's weights.
absl::StatusOr<HostJob> TakeJob(const protocol::Welcome& welcome,
                                const absl::StatusOr<JobSpec>& own_copy,
                                const std::optional<AgentDevices>& devices,
                                const HostShare& share);

// InvalidArgument, with the key and both values, if this host's copy of the job
// says something else; its own error if it cannot be read. NotFound is fine.
absl::Status CompareWithCopy(const JobSpec& job,
                             const absl::StatusOr<JobSpec>& own_copy);

// Whether this host sees the file that agent 0's host wrote into `folder`:
// `probe` is its name and its content.
bool SeesProbe(const std::string& folder, const std::string& probe);

// FindAgentDevices(), with its warnings printed.
absl::StatusOr<AgentDevices> FindDevices(const ResourceSpec& resources,
                                         const HostShare& share);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_HOST_JOB_H_
