// The state of this host's GPUs, by NVIDIA's management library (NVML).

#ifndef MILLRACE_WORKER_DOCTOR_GPU_HEALTH_H_
#define MILLRACE_WORKER_DOCTOR_GPU_HEALTH_H_

#include <string>

#include "worker/backend/nvml.h"
#include "worker/doctor/host_facts.h"

namespace millrace {

// Fills the driver, the CUDA it knows and the GPUs. A host without a driver
// stays without; a driver that does not work becomes `gpu_error`. `library` is
// loaded as LoadSharedLibrary() does.
void ReadGpuHealth(HostFacts* facts, const std::string& library = kNvmlLibrary);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_GPU_HEALTH_H_
