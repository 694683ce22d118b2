// How an agent starts the process of one of its workers, and the server by
// which other hosts reach this one's files.

#ifndef MILLRACE_WORKER_AGENT_WORKER_CHILD_H_
#define MILLRACE_WORKER_AGENT_WORKER_CHILD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/files/file_server.h"
#include "coordinator/protocol/millrace.pb.h"
#include "worker/agent/child_process.h"
#include "worker/agent/data_preparation.h"
#include "worker/agent/host_job.h"
#include "worker/agent/listener.h"
#include "worker/agent/network.h"

namespace millrace {

struct WorkerChild {
  std::string secret;
  int32_t worker_idx = 0;
  HostAddress address;  // Where it listens.
  int32_t device_idx = 0;  // Among the devices of its agent.
  std::string log_path;
};
// The things that the processes of a worker, which follow one another, share.
class WorkerPlaces {
 public:
  // Counts from 0 among the devices of this agent.
  int32_t DeviceOf(int32_t worker_idx);
  // An open memory file (replica_store.h): a process finds what the one before
  // it kept there.
  absl::StatusOr<int> ReplicaMemoryOf(int32_t worker_idx);

 private:
  std::map<int32_t, int32_t> devices_;
  std::map<int32_t, int> replica_memory_;
};

// For WorkerChildren, which adds what differs between the processes of a
// worker.
ChildOptions OptionsOf(const WorkerChild& worker, const HostJob& host_job,
                       const PreparedJobData& data);

// Adds the addresses of the host that the job may use.
void AddAddresses(const HostJob& host_job, protocol::AgentHello* hello);
// Listens at the host's usable addresses, for a coordinator: at network.ports.
absl::StatusOr<Listener> ListenForPeers(const HostJob& host_job);
// Listens at the host's usable addresses, and serves its folder of checkpoints.
absl::StatusOr<std::unique_ptr<FileServer>> ServeFilesOf(
    const HostJob& host_job, const std::string& secret);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_WORKER_CHILD_H_
