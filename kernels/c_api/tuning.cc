#include "kernels/c_api/tuning.h"

#include <cuda_runtime_api.h>

#include "base/status_macros.h"
#include "kernels/c_api/result.h"
#include "kernels/cuda/status.h"
#include "kernels/tuning_families.h"

namespace millrace {
namespace {

absl::Status Install(const char* table) {
  if (table == nullptr) {
    InstallTuning({});
    return absl::OkStatus();
  }
  int device = 0;
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "find the device"));
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device),
                             "read the name of the device"));
  return InstallKernelTuning(table, properties.name);
}

}  // namespace
}  // namespace millrace

extern "C" {

int millrace_install_tuning(const char* table) {
  return millrace::CResult(millrace::Install(table));
}

}  // extern "C"
