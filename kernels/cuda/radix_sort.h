// Stable sort of small numbers, for kernels that gather what shares a row.

#ifndef MILLRACE_KERNELS_CUDA_RADIX_SORT_H_
#define MILLRACE_KERNELS_CUDA_RADIX_SORT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Sorts (key, value) pairs by key, pairs of equal keys staying in their order.
// Digit by digit from the lowest, each by counting.
struct RadixSortArgs {
  int32_t* keys;    // [num_pairs], in [0, key_limit); sorted in place.
  int32_t* values;  // [num_pairs]; go along.
  int64_t num_pairs;
  int64_t key_limit;  // In [1, 2^31].
  void* workspace;    // RadixSortWorkspaceBytes(num_pairs), 16-byte aligned.
};

int64_t RadixSortWorkspaceBytes(int64_t num_pairs);

// Enqueues on `stream`, allocates nothing.
absl::Status LaunchRadixSort(const RadixSortArgs& args, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CUDA_RADIX_SORT_H_
