// The ways bf16 attention is computed; attention_bf16.cc chooses one for the
// device and the shape. All keep the contract of attention_bf16.h, except that
// the caller has checked the shape and that num_sequences is not zero.

#ifndef MILLRACE_KERNELS_ATTENTION_BF16_PATHS_H_
#define MILLRACE_KERNELS_ATTENTION_BF16_PATHS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention_bf16.h"

namespace millrace {

// With Hopper's instructions: whether this way has the shape, and the way.
bool AttentionForwardBf16Sm90Takes(const AttentionBf16Shape& shape);
absl::Status LaunchAttentionForwardBf16Sm90(
    const AttentionForwardBf16Args& args, cudaStream_t stream);

bool AttentionBackwardBf16Sm90Takes(const AttentionBf16Shape& shape,
                                    bool deterministic);
int64_t AttentionBackwardBf16Sm90WorkspaceBytes(
    const AttentionBf16Shape& shape);
absl::Status LaunchAttentionBackwardBf16Sm90(
    const AttentionBackwardBf16Args& args, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_BF16_PATHS_H_
