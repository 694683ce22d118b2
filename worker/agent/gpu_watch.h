// Asks the GPUs of an agent's workers when a worker's process dies. It compares
// the driver's counters with those at the process's start, and collects the XID
// messages in the kernel's log since then.

#ifndef MILLRACE_WORKER_AGENT_GPU_WATCH_H_
#define MILLRACE_WORKER_AGENT_GPU_WATCH_H_

#include <cstddef>
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

struct WorkerProcessId {
  int32_t worker_idx;
  int32_t incarnation;
};

class GpuWatch {
 public:
  // How long a driver may take to answer after a death. A longer silence is a
  // finding, too.
  static constexpr absl::Duration kDriverLimit = absl::Seconds(30);

  // `pci_bus_ids` are AgentDevices::gpu_bus_ids. The functions below name a GPU
  // by its position there, and do nothing for one that is not there. Without
  // any, neither the driver nor the log is read.
  explicit GpuWatch(const std::vector<std::string>& pci_bus_ids);
  // For tests.
  GpuWatch(const std::vector<std::string>& pci_bus_ids,
           const std::string& nvml_library, std::unique_ptr<KernelLog> log,
           absl::Duration driver_limit = kDriverLimit);

  // Takes what is new in the kernel's log. Never waits. To be called often, or
  // old records are overwritten.
  void ReadLog();

  // A worker's process starts on this GPU. Does not wait.
  void NoteStart(int32_t gpu);

  // A worker's process on this GPU has died. Returns what the kernel's log says
  // of it so far, as in "its GPU reported XID 79 (it fell off the bus)"; empty
  // if nothing. Never waits: TakeFindings() has the rest.
  std::string NoteDeath(int32_t gpu, const WorkerProcessId& process);

  // Returns what has become known of noted deaths, once for each: messages that
  // the kernel's log got later, and how the driver's counters have changed. A
  // driver that is ending the process's context answers after a second or two.
  // Nothing is returned where all is well. Never waits. To be called often.
  struct Finding {
    WorkerProcessId process;
    std::string text;
  };
  std::vector<Finding> TakeFindings();

 private:
  struct Gpu {
    std::string pci_bus_id;
    std::optional<PciAddress> address;
    std::future<GpuReading> asked_at_start;
    std::optional<GpuReading> at_start;  // Once it is there.
    std::vector<int32_t> xids;           // Since the start; the first of them.
  };

  // A death of which the driver has not said anything yet.
  struct Death {
    WorkerProcessId process;
    size_t gpu_idx;
    size_t num_told = 0;        // XIDs that NoteDeath() has returned.
    std::vector<int32_t> xids;  // Set when the GPU's next process starts.
    bool is_followed = false;   // By that process.
    std::future<GpuReading> asked_at_start;
    std::optional<GpuReading> at_start;
    std::future<GpuReading> asked;
    absl::Time since;
  };

  Gpu* Find(int32_t gpu);
  std::string Explain(Death& death, const GpuReading* now) const;

  // Null where there are no GPUs.
  std::unique_ptr<GpuReader> reader_;
  std::unique_ptr<KernelLog> log_;
  absl::Duration driver_limit_;
  std::vector<Gpu> gpus_;
  std::vector<Death> deaths_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_GPU_WATCH_H_
