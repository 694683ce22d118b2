// Describes this machine: its processor, its cores and memory, and the
// fingerprint by which a matching profile is found.

#ifndef MILLRACE_WORKER_MEASURE_MACHINE_H_
#define MILLRACE_WORKER_MEASURE_MACHINE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace millrace {

struct Machine {
  std::string processor;  // Model name, "unknown processor" if not told.
  int32_t num_cores;      // Hardware threads this process may run on.
  int64_t memory_bytes;   // The machine's, or the control group's if less.

  // Equal for machines of equal speed: "AMD-EPYC-9454-c2". Without the memory,
  // which a virtual machine's host may give and take while jobs run.
  std::string Fingerprint() const;
  // Describes the machine for people: "AMD EPYC 9454, 2 cores, 24.0 GiB".
  std::string Description() const;
};

// Internal if the machine's topology cannot be read.
absl::StatusOr<Machine> DescribeMachine();

// Threads of one device when `devices_on_host` share the cores; at least one.
int32_t ThreadsPerDevice(const Machine& machine, int32_t devices_on_host);

// Memory of one device when `devices_on_host` share what the system can spare.
int64_t DeviceMemoryBytes(const Machine& machine, int32_t devices_on_host);

}  // namespace millrace

#endif  // MILLRACE_WORKER_MEASURE_MACHINE_H_
