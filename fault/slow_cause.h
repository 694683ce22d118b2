// Why a rank may compute too long, by what its host and its GPU say of
// themselves.

#ifndef MILLRACE_FAULT_SLOW_CAUSE_H_
#define MILLRACE_FAULT_SLOW_CAUSE_H_

#include <cstdint>
#include <string>

#include "fault/gpu_sign.h"

namespace millrace {

// A value below zero is not known.
struct HostSign {
  double megahertz = -1;       // Mean over the processors.
  int64_t num_throttles = -1;  // By heat or power, since the host started.
  double steal_share = -1;     // Processor time that a hypervisor took.
  // Shares of the last ten seconds in which some process waited for a
  // processor, or for memory.
  double processor_pressure = -1;
  double memory_pressure = -1;
  GpuSign gpu;  // The rank's, where it has one.

  bool operator==(const HostSign&) const = default;
};

// Compares host and GPU now with what they were before the rank was slow: "the
// processors run at 1200 MHz and ran at 2400 MHz". Several causes are joined,
// the GPU's first. Says that none is known if nothing stands out.
std::string SlowCause(const HostSign& before, const HostSign& now);

}  // namespace millrace

#endif  // MILLRACE_FAULT_SLOW_CAUSE_H_
