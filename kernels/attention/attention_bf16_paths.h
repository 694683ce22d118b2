// The ways bf16 attention is computed; attention_bf16.cc chooses one for the
// device and the shape. All keep the contract of attention_bf16.h, except that
// the caller has checked the shape and that num_sequences is not zero, and that
// of the forward passes only Hopper's may find `amax`: after the portable one
// LaunchAmaxOfOutput() does.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_PATHS_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_PATHS_H_

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "kernels/attention/attention_bf16.h"

namespace millrace {

// With Hopper's instructions: whether this way has the shape, and the way.
bool AttentionForwardBf16Sm90Takes(const AttentionBf16Shape& shape);
absl::Status LaunchAttentionForwardBf16Sm90(
    const AttentionForwardBf16Args& args, cudaStream_t stream);

// After a kernel that wrote o: the second pass for amax, if it is not null.
absl::Status LaunchAmaxOfOutput(const AttentionForwardBf16Args& args,
                                cudaStream_t stream);

bool AttentionBackwardBf16Sm90Takes(const AttentionBf16Shape& shape,
                                    bool deterministic);
int64_t AttentionBackwardBf16Sm90WorkspaceBytes(
    const AttentionBf16Shape& shape);
absl::Status LaunchAttentionBackwardBf16Sm90(
    const AttentionBackwardBf16Args& args, cudaStream_t stream);

// With mma.sync, from compute capability 8.0 on, every shape; Unavailable on
// older devices. `tile_counter` is not used. Tiles are chosen for the shared
// memory of the device, or for less, so that tests reach the tiles of others.
inline constexpr int kAllSharedBytes = std::numeric_limits<int>::max();
inline constexpr int kLeastSharedBytes = 99 << 10;  // On 8.6, 8.9 and 12.0.
absl::Status LaunchAttentionForwardBf16Portable(
    const AttentionForwardBf16Args& args, cudaStream_t stream,
    int max_shared_bytes = kAllSharedBytes);

int64_t AttentionBackwardBf16PortableWorkspaceBytes(
    const AttentionBf16Shape& shape);
absl::Status LaunchAttentionBackwardBf16Portable(
    const AttentionBackwardBf16Args& args, cudaStream_t stream,
    int max_shared_bytes = kAllSharedBytes);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_PATHS_H_
