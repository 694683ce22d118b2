// Adds up tensors of several ranks that lie side by side in one rank's memory:
// the second half of a reduce-scatter whose first half copy engines did.

#ifndef MILLRACE_KERNELS_CUDA_SUM_SHARDS_H_
#define MILLRACE_KERNELS_CUDA_SUM_SHARDS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

inline constexpr int kMaxSumShards = 8;

// sum[i] = shards[0][i] + shards[1][i] + ..., added in this order in fp32 and
// rounded once.
struct SumShardsArgs {
  void* sum;                          // [num_elements]; may be one of shards.
  const void* shards[kMaxSumShards];  // [num_elements] each.
  int num_shards;                     // One to kMaxSumShards.
  int64_t num_elements;               // Zero is allowed and does nothing.
  ElementType type;                   // For all.
};

// Enqueues on `stream`, allocates nothing. Device pointers, at any multiple of
// an element's size; where all are multiples of 16 bytes, accesses are wide.
// InvalidArgument on a bad shape.
absl::Status LaunchSumShards(const SumShardsArgs& args, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CUDA_SUM_SHARDS_H_
