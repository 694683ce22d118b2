// Stores a few words when a stream reaches this point, for the host to read.

#ifndef MILLRACE_KERNELS_CUDA_STORE_WORD_H_
#define MILLRACE_KERNELS_CUDA_STORE_WORD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// *out = value, on the device. Enqueues on `stream`; takes about a microsecond
// of it.
absl::Status LaunchStoreWord(int32_t* out, int32_t value, cudaStream_t stream);

// Copies `count` numbers of the device to `out`, which is page-locked memory of
// the host (cudaHostAlloc), by a kernel. A copy engine works off its copies one
// by one, so that a few bytes would wait behind a download of gigabytes.
absl::Status LaunchStoreOnHost(double* out, const double* values, int64_t count,
                               cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CUDA_STORE_WORD_H_
