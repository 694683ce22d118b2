// Reads what a host, and the GPU of a rank, say of themselves that may slow the
// rank down.

#ifndef MILLRACE_WORKER_AGENT_HOST_SIGN_H_
#define MILLRACE_WORKER_AGENT_HOST_SIGN_H_

#include <future>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/protocol/health.pb.h"
#include "fault/slow_cause.h"
#include "worker/backend/gpu_reader.h"

namespace millrace {

// Takes some 0.1 ms. Call it at intervals of a second or so: shares are those
// since the call before.
class HostSignReader {
 public:
  // `gpu_bus_id` is CudaDeviceInfo::pci_bus_id; empty: no GPU is read.
  explicit HostSignReader(const std::string& gpu_bus_id = "",
                          const std::string& nvml_library = kNvmlLibrary);

  // Never waits for the GPU's driver: the GPU's values were asked for by the
  // call before, and are not known if the driver has not answered since.
  HostSign Read();

  // How long the driver took for the newest reading; 0: there was none.
  double gpu_seconds() const { return gpu_seconds_; }

 private:
  GpuSign ReadGpu();

  std::string gpu_bus_id_;
  std::unique_ptr<GpuReader> gpu_reader_;  // Null without a GPU.
  std::future<GpuReading> gpu_reading_;
  double gpu_seconds_ = 0;
  double stolen_ = -1;  // At the call before; below zero: there was none.
  double all_ = 0;
};

void ToMessage(const HostSign& sign, protocol::HostSign* message);

// For tests: the parts of /proc. Below zero if the text has no such value.
double ParsePressure(absl::string_view pressure);  // "some avg10", as a share.
double ParseMegahertz(absl::string_view cpuinfo);
struct StolenTime {
  double stolen = 0;  // In ticks, as all.
  double all = 0;
};
StolenTime ParseStolenTime(absl::string_view proc_stat);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_HOST_SIGN_H_
