// The state of this host's GPUs, by NVIDIA's management library (NVML), which
// comes with the driver. It is loaded when asked for, and each of its functions
// may be missing: older drivers have fewer. Its numbers are part of its binary
// interface and are written down here, so that no header of CUDA is needed.

#ifndef MILLRACE_WORKER_DOCTOR_GPU_HEALTH_H_
#define MILLRACE_WORKER_DOCTOR_GPU_HEALTH_H_

#include <cstdint>
#include <string>

#include "worker/doctor/host_facts.h"

namespace millrace {

// Fills the driver, the CUDA it knows and the GPUs. A host without a driver
// stays without; a driver that does not work becomes `gpu_error`.
void ReadGpuHealth(HostFacts* facts);

// Names the bits of GpuFacts::throttle_reasons that slow down work, such as
// "heat (hardware)"; empty if none does. An idle GPU and one at its power limit
// are well.
std::string SlowingReasons(int64_t throttle_reasons);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_GPU_HEALTH_H_
