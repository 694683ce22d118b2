// `millrace worker`: one device's process. Connects to the coordinator, runs
// the generations it is given and ends them when told.

#ifndef MILLRACE_WORKER_AGENT_WORKER_PROCESS_H_
#define MILLRACE_WORKER_AGENT_WORKER_PROCESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"

namespace millrace {

struct WorkerOptions {
  std::string coordinator_address;
  std::string secret;
  std::string run;                   // The run directory, on agent 0's host.
  std::string checkpoint_directory;  // On this host.
  WorkerIdx worker{};
  int32_t incarnation = 1;
  std::string host_address;  // Where peers reach this machine.
  std::string gpu_bus_id;  // CudaDeviceInfo::pci_bus_id. Empty: on CPU cores.
  int32_t num_threads = 1;
  absl::Duration heartbeat_interval = absl::Milliseconds(200);
  // The memory file for copies of the training state (replica_store.h), which
  // the agent holds open too. Below zero: none.
  int replica_fd = -1;
  // Descriptors of the worker's earlier processes (pidfd_open) that have not
  // ended yet. Run() waits for them before it joins the job.
  std::vector<int> predecessor_fds;
  // At least zero: this is a standby process, which waits here for the address,
  // the incarnation and the predecessors (standby.h).
  int standby_fd = -1;
  std::vector<std::string> data_prefixes;  // Made by PrefixesToArguments().
  // "NAME=PREFIX" for each prefix of each set of the job's evaluation section.
  std::vector<std::string> evaluation_prefixes;
};

// Runs until the coordinator says that the job is over, as a standby process
// also until the agent has no use for it. Returns Unavailable if the
// coordinator stays away.
//
// It does not return if a generation cannot be ended within two seconds of
// being aborted, or has lost its GPU to an error. The process then exits, and
// its agent replaces it. If aborting itself hangs, the coordinator has the
// process killed (JobStateOptions::clear_timeout).
absl::Status RunWorker(const WorkerOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_WORKER_PROCESS_H_
