// Asks the GPUs of an agent's workers when a worker's process dies. It compares
// the driver's counters with those at the process's start, and collects the XID
// messages in the kernel's log since then.

#ifndef MILLRACE_WORKER_AGENT_GPU_WATCH_H_
#define MILLRACE_WORKER_AGENT_GPU_WATCH_H_

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "fault/xid.h"
#include "worker/agent/kernel_log.h"
#include "worker/backend/gpu_reader.h"

namespace millrace {

class GpuWatch {
 public:
  // No GPU, in the functions below: they do and say nothing of it.
  static constexpr int32_t kNone = -1;

  // `pci_bus_ids` are AgentDevices::gpu_bus_ids. The functions below name a GPU
  // by its position there. Without any, neither the driver nor the log is read.
  explicit GpuWatch(const std::vector<std::string>& pci_bus_ids);
  // For tests.
  GpuWatch(const std::vector<std::string>& pci_bus_ids,
           const std::string& nvml_library, std::unique_ptr<KernelLog> log);

  // Takes what is new in the kernel's log. Never waits. To be called often, or
  // old records are overwritten.
  void ReadLog();

  // A worker's process starts on this GPU. Does not wait.
  void NoteStart(int32_t gpu);

  // Processes on these GPUs have died. Returns for each what its GPU says, as
  // in "its GPU reported XID 79 (it fell off the bus)"; empty if nothing stands
  // out. Waits for the driver for `limit` at most, over all GPUs: a driver that
  // answers later is left out.
  std::vector<std::string> Explain(const std::vector<int32_t>& gpus,
                                   absl::Duration limit);

 private:
  struct Gpu {
    std::string pci_bus_id;
    std::optional<PciAddress> address;
    std::future<GpuReading> asked_at_start;
    std::optional<GpuReading> at_start;  // Once it is there.
    std::vector<int32_t> xids;           // Since the start; the first of them.
  };

  Gpu* Find(int32_t gpu);

  // Null where there are no GPUs.
  std::unique_ptr<GpuReader> reader_;
  std::unique_ptr<KernelLog> log_;
  std::vector<Gpu> gpus_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_GPU_WATCH_H_
