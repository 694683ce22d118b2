// Reads what the driver says of GPUs, on a thread of its own. A driver answers
// late while a process is torn down, and may not answer for a minute, or ever,
// once a GPU is in trouble. Nobody else waits with it.

#ifndef MILLRACE_WORKER_BACKEND_GPU_READER_H_
#define MILLRACE_WORKER_BACKEND_GPU_READER_H_

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "fault/gpu_sign.h"
#include "worker/backend/nvml.h"

namespace millrace {

struct GpuReading {
  GpuSign sign;        // Unknown where there is no driver.
  double seconds = 0;  // How long the driver took to answer.
};

// NVML is loaded at the first reading and stays initialized. A reading forks
// nothing. Thread-safe.
class GpuReader {
 public:
  // `library` is loaded as LoadSharedLibrary() does.
  explicit GpuReader(const std::string& library = kNvmlLibrary);
  // Readings that have not begun are dropped. Leaves the thread behind if the
  // driver does not answer within a second.
  ~GpuReader();
  GpuReader(const GpuReader&) = delete;
  GpuReader& operator=(const GpuReader&) = delete;

  // Asks for the GPU at `pci_bus_id` ("0000:1b:00.0") and does not wait.
  // Readings are made one after the other.
  std::future<GpuReading> Read(const std::string& pci_bus_id);

 private:
  struct Shared;
  static void Run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;  // With the thread.
  std::thread thread_;
};

// Takes the reading out of the future if it comes within `limit`. Nothing if it
// does not, or if the future has none: it was never asked for or was taken.
std::optional<GpuReading> TakeReading(std::future<GpuReading>* reading,
                                      absl::Duration limit);

}  // namespace millrace

#endif  // MILLRACE_WORKER_BACKEND_GPU_READER_H_
