#include "kernels/c_api/tuning.h"

#include "kernels/c_api/result.h"
#include "kernels/tuning/device_tuning.h"
#include "kernels/tuning/tuning.h"

extern "C" {

int millrace_install_tuning(const char* table) {
  if (table == nullptr) {
    millrace::InstallTuning({});
    return 0;
  }
  return millrace::CResult(millrace::InstallKernelTuningOfDevice(table));
}

}  // extern "C"
