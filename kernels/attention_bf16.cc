#include "kernels/attention_bf16.h"

#include "base/status_macros.h"
#include "kernels/attention_bf16_paths.h"
#include "kernels/attention_bf16_shape.h"

namespace millrace {

int64_t AttentionBackwardBf16WorkspaceBytes(const AttentionBf16Shape& shape) {
  return AttentionBackwardBf16Sm90WorkspaceBytes(shape);
}

absl::Status LaunchAttentionForwardBf16(const AttentionForwardBf16Args& args,
                                        cudaStream_t stream) {
  RETURN_IF_ERROR(CheckAttentionBf16Shape(args.shape));
  if (args.shape.num_sequences == 0) return absl::OkStatus();
  return LaunchAttentionForwardBf16Sm90(args, stream);
}

absl::Status LaunchAttentionBackwardBf16(const AttentionBackwardBf16Args& args,
                                         cudaStream_t stream) {
  RETURN_IF_ERROR(CheckAttentionBf16Shape(args.shape));
  if (args.shape.num_sequences == 0) return absl::OkStatus();
  return LaunchAttentionBackwardBf16Sm90(args, stream);
}

}  // namespace millrace
