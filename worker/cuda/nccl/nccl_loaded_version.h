// Finds which NCCL library this process has loaded.

#ifndef MILLRACE_WORKER_CUDA_NCCL_NCCL_LOADED_VERSION_H_
#define MILLRACE_WORKER_CUDA_NCCL_NCCL_LOADED_VERSION_H_

#include "absl/status/statusor.h"

namespace millrace {

// Returns the version in CheckNcclVersion()'s form. Returns Unavailable if the
// library does not tell.
absl::StatusOr<int> LoadedNcclVersion();

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_NCCL_NCCL_LOADED_VERSION_H_
