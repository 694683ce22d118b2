// Words that a stream writes and awaits by itself: no kernel, so no
// multiprocessor, and the host may be asleep.

#ifndef MILLRACE_WORKER_CUDA_PEER_STREAM_WORDS_H_
#define MILLRACE_WORKER_CUDA_PEER_STREAM_WORDS_H_

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Operations in order. Words as the device sees them: its own, a peer's or the
// host's.
class StreamWordOps {
 public:
  // Adds a write that happens after all earlier work of the stream is visible.
  void AddWrite(void* word, uint32_t value);
  // Adds a wait until the word, as a signed number, is at least `value`.
  void AddAwait(void* word, uint32_t value);

  // Enqueues all at once; a CUDA graph may capture it. Unavailable if the
  // driver is older than CUDA 12.
  absl::Status Enqueue(cudaStream_t stream) const;

 private:
  std::vector<CUstreamBatchMemOpParams> ops_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_PEER_STREAM_WORDS_H_
