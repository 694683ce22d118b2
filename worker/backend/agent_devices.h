// The share of a host's cores or GPUs that one agent gives to its workers when
// several agents share the host.

#ifndef MILLRACE_WORKER_BACKEND_AGENT_DEVICES_H_
#define MILLRACE_WORKER_BACKEND_AGENT_DEVICES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "worker/backend/cuda_backend.h"
#include "worker/measure/machine.h"

namespace millrace {

struct AgentDevices {
  int32_t num_devices = 1;
  int32_t threads_per_device = 1;
  int32_t devices_on_host = 1;   // Over all its agents.
  int32_t first_device_idx = 0;  // The first GPU's index on the host.
  // Where this agent's GPUs are, by device from the first one on
  // (CudaDeviceInfo::pci_bus_id); empty on CPUs.
  std::vector<std::string> gpu_bus_ids;
  int64_t memory_bytes = 0;  // For training, on one device.
  std::string machine;       // Fingerprint, as in a profile.
  std::string description;   // The machine, described for people.
};

// An agent's place among those of its host.
struct HostShare {
  int32_t num_agents = 1;
  int32_t agent_idx = 0;  // In [0, num_agents).
};

// Shares the cores evenly among the workers of all agents of the host, where
// the job does not say. If the job gives neither devices nor threads, every
// core gets a worker.
AgentDevices ShareCores(const ResourceSpec& resources, const Machine& machine,
                        const HostShare& share);

// Gives one worker to every GPU, unless the job wants fewer. Cores are shared
// out as above, since GPUs wait for threads of the host too. `gpus` are all
// that the host shows, in CUDA's order. The memory excludes what contexts,
// libraries and communicators take.
//
// Returns InvalidArgument if there are fewer GPUs than agents and job ask for,
// and FailedPrecondition if those to use are not of one kind.
absl::StatusOr<AgentDevices> ShareGpus(const ResourceSpec& resources,
                                       const Machine& machine,
                                       const std::vector<CudaDeviceInfo>& gpus,
                                       const HostShare& share);

// The share of this host that `share` gives an agent, by what the machine has.
// Sentences to warn of go to `warnings`, from the first agent of a host only.
// Errors are those of LoadCudaBackend(), CudaBackend and ShareGpus().
absl::StatusOr<AgentDevices> FindAgentDevices(
    const ResourceSpec& resources, const HostShare& share,
    std::vector<std::string>* warnings);

// A worker's GPU as its own process reaches it.
struct WorkerGpu {
  CudaBackend* backend;
  int32_t device_idx;  // In CUDA's order.
};

// CUDA counts GPUs anew in each process, without those that have fallen off the
// bus, so only the bus id names the same GPU to an agent and to workers that
// start later. Internal if there is none with it any more. Other errors are
// those of LoadCudaBackend() and CudaBackend.
absl::StatusOr<WorkerGpu> FindWorkerGpu(const std::string& pci_bus_id);
absl::StatusOr<int32_t> IndexOfGpu(const std::vector<CudaDeviceInfo>& gpus,
                                   const std::string& pci_bus_id);

}  // namespace millrace

#endif  // MILLRACE_WORKER_BACKEND_AGENT_DEVICES_H_
