#include "kernels/tuning/device_tuning.h"

#include <cuda_runtime_api.h>

#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/tuning/tuning_families.h"

namespace millrace {

absl::Status InstallKernelTuningOfDevice(absl::string_view text) {
  int device = 0;
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "find the device"));
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device),
                             "read the name of the device"));
  return InstallKernelTuning(text, properties.name);
}

}  // namespace millrace
