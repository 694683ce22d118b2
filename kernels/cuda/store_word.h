// Stores a word when a stream reaches this point, so that the host can see how
// far the stream is.

#ifndef MILLRACE_KERNELS_CUDA_STORE_WORD_H_
#define MILLRACE_KERNELS_CUDA_STORE_WORD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// *out = value, on the device. Enqueues on `stream`; takes about a microsecond
// of it.
absl::Status LaunchStoreWord(int32_t* out, int32_t value, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CUDA_STORE_WORD_H_
