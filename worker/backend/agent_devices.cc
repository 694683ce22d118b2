#include "worker/backend/agent_devices.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace millrace {
namespace {

// Context and modules, cuBLASLt's workspace and the buffers of a few NCCL
// communicators, with room to spare.
constexpr int64_t kGpuReserveBytes = 4 * kGiB;

int32_t CoresOfAgent(const Machine& machine, const HostShare& share) {
  return std::max(1, machine.num_cores / std::max(1, share.num_agents));
}

std::string DescribeGpus(const std::vector<CudaDeviceInfo>& gpus) {
  std::string text;
  for (size_t i = 0; i < gpus.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", i, ": ", gpus[i].name);
  }
  return text;
}

bool SameKind(const CudaDeviceInfo& a, const CudaDeviceInfo& b) {
  return a.name == b.name && a.compute_capability == b.compute_capability &&
         a.num_multiprocessors == b.num_multiprocessors;
}

// "NVIDIA-H200-x4".
std::string FingerprintOf(const std::string& name, size_t count) {
  std::string words;
  for (const char character : name) {
    if (absl::ascii_isalnum(character)) {
      words += character;
    } else if (!words.empty() && words.back() != '-') {
      words += '-';
    }
  }
  return absl::StrCat(words, "-x", count);
}

}  // namespace

AgentDevices ShareCores(const ResourceSpec& resources, const Machine& machine,
                        const HostShare& share) {
  AgentDevices devices = {.machine = machine.Fingerprint(),
                          .description = machine.Description()};
  const int32_t cores = CoresOfAgent(machine, share);
  if (resources.devices_per_agent.has_value()) {
    devices.num_devices = *resources.devices_per_agent;
    devices.threads_per_device = resources.threads_per_device.value_or(
        std::max(1, cores / devices.num_devices));
  } else {
    devices.threads_per_device = resources.threads_per_device.value_or(1);
    devices.num_devices = std::max(1, cores / devices.threads_per_device);
  }
  devices.devices_on_host = devices.num_devices * std::max(1, share.num_agents);
  devices.memory_bytes = DeviceMemoryBytes(machine, devices.devices_on_host);
  return devices;
}

absl::StatusOr<AgentDevices> ShareGpus(const ResourceSpec& resources,
                                       const Machine& machine,
                                       const std::vector<CudaDeviceInfo>& gpus,
                                       const HostShare& share) {
  const auto num_gpus = static_cast<int32_t>(gpus.size());
  const int32_t num_agents = std::max(1, share.num_agents);
  const int32_t num_devices =
      resources.devices_per_agent.value_or(num_gpus / num_agents);
  const int32_t on_host = num_devices * num_agents;
  if (num_devices < 1 || on_host > num_gpus) {
    const std::string agents =
        num_agents == 1
            ? ""
            : absl::StrCat(" for each of ", num_agents, " agents on this host");
    return absl::InvalidArgumentError(absl::StrCat(
        "resources: ", std::max(1, num_devices), " GPUs", agents,
        " are wanted, but there are ", num_gpus, " (", DescribeGpus(gpus),
        "); lower resources.devices_per_agent, start fewer agents a host, or "
        "see whether CUDA_VISIBLE_DEVICES hides some"));
  }
  AgentDevices devices = {
      .num_devices = num_devices,
      .threads_per_device = resources.threads_per_device.value_or(
          std::max(1, CoresOfAgent(machine, share) / num_devices)),
      .devices_on_host = on_host,
      .first_device_idx = share.agent_idx * num_devices};
  for (int32_t i = 0; i < num_devices; ++i) {
    devices.gpu_bus_ids.push_back(
        gpus[devices.first_device_idx + i].pci_bus_id);
  }
  int64_t smallest = gpus[0].memory_bytes;
  for (int32_t i = 0; i < on_host; ++i) {
    smallest = std::min(smallest, gpus[i].memory_bytes);
    if (SameKind(gpus[i], gpus[0])) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the GPUs are not of one kind (", DescribeGpus(gpus),
                     "), so the slowest would set the pace of all; choose with "
                     "CUDA_VISIBLE_DEVICES"));
  }
  devices.memory_bytes = std::max<int64_t>(0, smallest - kGpuReserveBytes);
  devices.machine = FingerprintOf(gpus[0].name, gpus.size());
  devices.description =
      absl::StrCat(num_gpus, " x ", gpus[0].name, " of ", FormatBytes(smallest),
                   "; ", machine.Description());
  return devices;
}

absl::StatusOr<AgentDevices> FindAgentDevices(
    const ResourceSpec& resources, const HostShare& share,
    std::vector<std::string>* warnings) {
  ASSIGN_OR_RETURN(const Machine machine, DescribeMachine());
  if (!resources.uses_cuda()) return ShareCores(resources, machine, share);
  ASSIGN_OR_RETURN(CudaBackend* const backend, LoadCudaBackend());
  ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> gpus,
                   backend->ListDevices());
  ASSIGN_OR_RETURN(AgentDevices devices,
                   ShareGpus(resources, machine, gpus, share));
  if (share.agent_idx == 0) {
    ASSIGN_OR_RETURN(*warnings, backend->CheckHost(devices.devices_on_host));
  }
  return devices;
}

absl::StatusOr<int32_t> IndexOfGpu(const std::vector<CudaDeviceInfo>& gpus,
                                   const std::string& pci_bus_id) {
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i].pci_bus_id == pci_bus_id) return static_cast<int32_t>(i);
  }
  return absl::InternalError(absl::StrCat(
      "GPU ", pci_bus_id, " is no longer among the GPUs that CUDA finds (",
      DescribeGpus(gpus),
      "); dmesg says so if it has fallen off the bus (Xid 79)"));
}

absl::StatusOr<WorkerGpu> FindWorkerGpu(const std::string& pci_bus_id) {
  ASSIGN_OR_RETURN(CudaBackend* const backend, LoadCudaBackend());
  ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> gpus,
                   backend->ListDevices());
  ASSIGN_OR_RETURN(const int32_t device_idx, IndexOfGpu(gpus, pci_bus_id));
  return WorkerGpu{.backend = backend, .device_idx = device_idx};
}

}  // namespace millrace
