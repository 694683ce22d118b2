// Holds what a GPU's driver says of it (worker/backend/nvml.h reads that), and
// finds in it why a rank is slow or a process died. Pure.

#ifndef MILLRACE_FAULT_GPU_SIGN_H_
#define MILLRACE_FAULT_GPU_SIGN_H_

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

// A value below zero is not known.
struct GpuSign {
  int64_t present = -1;           // 0: the driver finds the GPU no more.
  int64_t clock_mhz = -1;         // The multiprocessors', now.
  int64_t throttle_reasons = -1;  // Bits, which SlowingReasons() names.
  int64_t corrected_errors = -1;  // Memory errors since the driver was loaded.
  int64_t uncorrected_errors = -1;
  int64_t remap_pending = -1;   // 0 or 1: rows are remapped after a reset.
  int64_t remap_failed = -1;    // 0 or 1.
  int64_t nvlinks = -1;         // Links that are there.
  int64_t active_nvlinks = -1;  // Links that work now.
  int64_t nvlink_errors = -1;   // Replays, recoveries and checksums, summed.
  int64_t pcie_width = -1;      // Lanes in use.

  bool operator==(const GpuSign&) const = default;
};

// Names the bits of `throttle_reasons` that slow down work, such as "heat (by
// the hardware)"; empty if none does. An idle GPU and one at its power limit
// are well. The bits are NVML's "clocks event reasons".
std::string SlowingReasons(int64_t throttle_reasons);

// Whether the driver told anything by which a slow rank can be explained.
bool IsKnown(const GpuSign& sign);

// Why a rank may compute too long: phrases such as "its GPU runs at 1200 MHz
// and ran at 1980 MHz". `before` is from a time when the rank was well. Empty
// if nothing stands out.
std::vector<std::string> SlowGpuCauses(const GpuSign& before,
                                       const GpuSign& now);

// Why a process may have died: phrases such as "its GPU counts 2 new
// uncorrected memory errors". `before` is from the process's start. Empty if
// nothing stands out.
std::vector<std::string> GpuFailures(const GpuSign& before, const GpuSign& now);

}  // namespace millrace

#endif  // MILLRACE_FAULT_GPU_SIGN_H_
