#include "kernels/attention/attention_bf16.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/attention/attention_bf16_paths.h"
#include "kernels/attention/attention_bf16_shape.h"
#include "kernels/cuda/amax.h"
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
  RETURN_IF_ERROR(LaunchAttentionForwardBf16Portable(args, stream));
  return LaunchAmaxOfOutput(args, stream);
}

absl::Status LaunchAmaxOfOutput(const AttentionForwardBf16Args& args,
                                cudaStream_t stream) {
  if (args.amax == nullptr) return absl::OkStatus();
  const AttentionBf16Shape& shape = args.shape;
  const Bf16Heads& o = args.o;
  if (o.head_stride != shape.head_dim) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention finds the largest output of heads side by side; they are ",
        o.head_stride, " elements apart, and head_dim is ", shape.head_dim));
  }
  const bool packed = shape.document_offsets != nullptr;
  const int64_t num_sequences = packed ? 1 : shape.num_sequences;
  for (int64_t sequence = 0; sequence < num_sequences; ++sequence) {
    RETURN_IF_ERROR(LaunchAmaxBf16(
        {.amax = args.amax,
         .x = static_cast<const uint16_t*>(o.data) +
              sequence * (packed ? 0 : o.sequence_stride),
         .x_row_stride = o.token_stride,
         .rows = packed ? shape.total_tokens : shape.sequence_length,
         .columns = shape.num_heads * shape.head_dim},
        stream));
  }
  return absl::OkStatus();
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
