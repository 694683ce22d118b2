#include "worker/agent/worker_child.h"

#include <fcntl.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/files/remote_files.h"
#include "coordinator/protocol/secret.h"
#include "worker/agent/listener.h"
#include "worker/agent/replica_store.h"
#include "worker/data/open_batches.h"

namespace millrace {
namespace {

// Queues of a GPU: streams that share one wait for each other, and those of
// copy engines wait for other ranks. CUDA has eight otherwise, 32 at most.
constexpr char kConnectionsVariable[] = "CUDA_DEVICE_MAX_CONNECTIONS";
// NCCL's own connections go over the interface that was chosen here.
constexpr char kNcclInterface[] = "NCCL_SOCKET_IFNAME";
constexpr char kNcclFamily[] = "NCCL_SOCKET_FAMILY";

absl::StatusOr<Listener> Listen(const HostJob& host_job,
                                const ListenerPorts& ports) {
  ASSIGN_OR_RETURN(const std::vector<HostAddress> usable,
                   UsableAddresses(host_job.job.network, host_job.addresses));
  std::vector<std::string> addresses;
  for (const HostAddress& address : usable) {
    addresses.push_back(address.address);
  }
  return Listener::Create(addresses, ports);
}

}  // namespace

int32_t WorkerPlaces::DeviceOf(int32_t worker_idx) {
  const auto next = static_cast<int32_t>(devices_.size());
  return devices_.try_emplace(worker_idx, next).first->second;
}

absl::StatusOr<int> WorkerPlaces::ReplicaMemoryOf(int32_t worker_idx) {
  const auto found = replica_memory_.find(worker_idx);
  if (found != replica_memory_.end()) return found->second;
  ASSIGN_OR_RETURN(const int fd, ReplicaStore::MakeMemoryFile());
  return replica_memory_[worker_idx] = fd;
}

ChildOptions OptionsOf(const WorkerChild& worker, const HostJob& host_job,
                       const PreparedJobData& data) {
  const std::string threads = absl::StrCat(host_job.devices.threads_per_device);
  const JobSpec& job = host_job.job;
  const HostAddress& address = worker.address;
  ChildOptions child = {
      .arguments = {"worker", "--worker", absl::StrCat(worker.worker_idx),
                    "--host-address", address.address, "--threads", threads,
                    "--heartbeat-ms",
                    absl::StrCat(job.fault.heartbeat_interval_ms), "--run",
                    host_job.run, "--checkpoints",
                    host_job.checkpoint_directory},
      // More workers than cores are common on a CPU: waiting threads must
      // sleep, not spin.
      .environment = {{kSecretVariable, worker.secret},
                      {"OMP_NUM_THREADS", threads},
                      {"OMP_WAIT_POLICY", "passive"}},
      .log_path = worker.log_path};
  if (job.resources.uses_cuda()) {
    child.arguments.insert(
        child.arguments.end(),
        {"--gpu-bus-id", host_job.devices.gpu_bus_ids.at(worker.device_idx)});
  }
  if (job.resources.transport != "nccl" &&
      std::getenv(kConnectionsVariable) == nullptr) {
    child.environment.emplace_back(kConnectionsVariable, "32");
  }
  if (!address.is_loopback && std::getenv(kNcclInterface) == nullptr) {
    child.environment.emplace_back(kNcclInterface,
                                   absl::StrCat("=", address.interface));
    if (std::getenv(kNcclFamily) == nullptr) {
      child.environment.emplace_back(kNcclFamily,
                                     address.is_ipv6 ? "AF_INET6" : "AF_INET");
    }
  }
  for (std::string& prefix :
       PrefixesToArguments(PrefixesBySource(data.training))) {
    child.arguments.push_back("--data-prefix");
    child.arguments.push_back(std::move(prefix));
  }
  for (const EvaluationSet& set : data.evaluation) {
    for (const std::string& prefix : set.prefixes) {
      child.arguments.push_back("--evaluation-prefix");
      child.arguments.push_back(absl::StrCat(set.name, "=", prefix));
    }
  }
  return child;
}

void AddAddresses(const HostJob& host_job, protocol::AgentHello* hello) {
  const absl::StatusOr<std::vector<HostAddress>> usable =
      UsableAddresses(host_job.job.network, host_job.addresses);
  if (!usable.ok()) return;  // Who needs an address reports it.
  for (const HostAddress& address : *usable) {
    protocol::InterfaceAddress* added = hello->add_addresses();
    added->set_interface(address.interface);
    added->set_address(address.address);
  }
}

absl::StatusOr<Listener> ListenForPeers(const HostJob& host_job) {
  const NetworkSpec& network = host_job.job.network;
  if (network.ports.empty()) return Listen(host_job, {});
  // The job was read: they are ports.
  return Listen(host_job, {.range = *ParsePorts(network.ports),
                           .origin = "network.ports"});
}

absl::StatusOr<std::unique_ptr<FileServer>> ServeFilesOf(
    const HostJob& host_job, const std::string& secret) {
  ASSIGN_OR_RETURN(const Listener listener, Listen(host_job, {}));
  // The listener closes its own descriptor.
  ASSIGN_OR_RETURN(
      std::unique_ptr<FileServer> files,
      FileServer::Create(fcntl(listener.fd(), F_DUPFD_CLOEXEC, 0), secret));
  files->Serve(kServedCheckpoints, host_job.checkpoint_directory,
               /*writable=*/true);
  return files;
}

}  // namespace millrace
