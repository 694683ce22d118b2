#include "worker/cuda/nccl/nccl_loaded_version.h"

#include <nccl.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace millrace {

absl::StatusOr<int> LoadedNcclVersion() {
  int version = 0;
  const ncclResult_t result = ncclGetVersion(&version);
  if (result == ncclSuccess) return version;
  return absl::UnavailableError(absl::StrCat(
      "NCCL does not tell its version: ", ncclGetErrorString(result),
      "; install it again"));
}

}  // namespace millrace
