// Says which versions of the NCCL library suit training that must survive the
// loss of a rank.

#ifndef MILLRACE_WORKER_CUDA_NCCL_NCCL_VERSION_H_
#define MILLRACE_WORKER_CUDA_NCCL_NCCL_VERSION_H_

#include <string>

#include "absl/status/statusor.h"

namespace millrace {

// "2.28.9", of a code as ncclGetVersion() gives it.
std::string NcclVersionName(int version_code);

// Returns a warning about an NCCL version that works but is advised against;
// empty if there is none. FailedPrecondition, saying which version to use, if
// communicators cannot be made without blocking and limited in thread blocks
// (before 2.18).
absl::StatusOr<std::string> CheckNcclVersion(int version_code);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_NCCL_NCCL_VERSION_H_
