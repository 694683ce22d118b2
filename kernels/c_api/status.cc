#include "kernels/c_api/status.h"

#include <string>

#include "kernels/c_api/result.h"

namespace {

std::string& LastError() {
  thread_local std::string message;
  return message;
}

}  // namespace

namespace millrace {

int CResult(const absl::Status& status) {
  if (!status.ok()) LastError() = std::string(status.message());
  return static_cast<int>(status.code());
}

}  // namespace millrace

extern "C" {

int millrace_kernels_abi_version(void) { return MILLRACE_KERNELS_ABI_VERSION; }

const char* millrace_last_error(void) { return LastError().c_str(); }

}  // extern "C"
