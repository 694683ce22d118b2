#include "kernels/attention/attention_bf16.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/attention/attention_bf16_paths.h"
#include "kernels/attention/attention_bf16_shape.h"
#include "kernels/cuda/device.h"

namespace millrace {
namespace {

// Whether the current device has Hopper's instructions; Unavailable if it is
// older than what the portable way needs.
absl::StatusOr<bool> IsHopper() {
  RETURN_IF_ERROR(CheckPortableDevice("bf16 attention"));
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  return limits.IsHopper();
}

}  // namespace

// Enough for either way: a caller may ask before it has chosen a device.
int64_t AttentionBackwardBf16WorkspaceBytes(const AttentionBf16Shape& shape) {
  int64_t num_bytes = AttentionBackwardBf16PortableWorkspaceBytes(shape);
  if (AttentionBackwardBf16Sm90Takes(shape, /*deterministic=*/false) ||
      AttentionBackwardBf16Sm90Takes(shape, /*deterministic=*/true)) {
    num_bytes =
        std::max(num_bytes, AttentionBackwardBf16Sm90WorkspaceBytes(shape));
  }
  return num_bytes;
}

absl::Status LaunchAttentionForwardBf16(const AttentionForwardBf16Args& args,
                                        cudaStream_t stream) {
  RETURN_IF_ERROR(CheckAttentionBf16Shape(args.shape));
  if (args.shape.num_sequences == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool is_hopper, IsHopper());
  if (is_hopper && AttentionForwardBf16Sm90Takes(args.shape)) {
    return LaunchAttentionForwardBf16Sm90(args, stream);
  }
  return LaunchAttentionForwardBf16Portable(args, stream);
}

absl::Status LaunchAttentionBackwardBf16(const AttentionBackwardBf16Args& args,
                                         cudaStream_t stream) {
  RETURN_IF_ERROR(CheckAttentionBf16Shape(args.shape));
  if (args.shape.num_sequences == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool is_hopper, IsHopper());
  if (is_hopper &&
      AttentionBackwardBf16Sm90Takes(args.shape, args.deterministic)) {
    return LaunchAttentionBackwardBf16Sm90(args, stream);
  }
  return LaunchAttentionBackwardBf16Portable(args, stream);
}

}  // namespace millrace
