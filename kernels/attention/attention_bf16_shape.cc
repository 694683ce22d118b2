#include "kernels/attention/attention_bf16_shape.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/tensor_map.h"

namespace millrace {

absl::Status CheckAttentionBf16Shape(const AttentionBf16Shape& shape) {
  if (shape.head_dim != 64 && shape.head_dim != 96 && shape.head_dim != 128 &&
      shape.head_dim != 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("bf16 attention has head_dim 64, 96, 128 and 256; got ",
                     shape.head_dim));
  }
  if (shape.num_sequences < 0 || shape.sequence_length < 1 ||
      shape.num_kv_heads < 1 || shape.num_heads < 1 ||
      shape.num_heads % shape.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bf16 attention got ", shape.num_sequences, " sequences of ",
        shape.sequence_length, " tokens, ", shape.num_heads,
        " query heads over ", shape.num_kv_heads,
        " key-value heads; lengths must be positive and the query heads a "
        "multiple of the key-value heads"));
  }
  if (shape.window < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("bf16 attention got a window of ", shape.window,
                     " keys; it must be positive, or zero for none"));
  }
  if (!(shape.softcap >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("bf16 attention got a softcap of ", shape.softcap,
                     "; it must be positive, or zero for none"));
  }
  const bool packed = shape.document_offsets != nullptr;
  if (packed && shape.total_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("bf16 attention got ", shape.total_tokens,
                     " packed tokens; there must be zero or more"));
  }
  // Rows, and tiles, of which each document may begin one, are counted in 32
  // bits on the device.
  const int64_t num_tokens = packed
                                 ? shape.total_tokens + shape.num_sequences
                                 : shape.num_sequences * shape.sequence_length;
  if (num_tokens * shape.num_heads > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bf16 attention takes at most 2^31 - 1 query rows; got ", num_tokens,
        packed ? " tokens and documents x " : " tokens x ", shape.num_heads,
        " heads"));
  }
  return absl::OkStatus();
}

absl::Status CheckNoSoftcap(const AttentionBf16Shape& shape) {
  if (shape.softcap == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("bf16 attention with Hopper's instructions has no softcap; "
                   "got one of ",
                   shape.softcap));
}

absl::StatusOr<int> NumHopperMultiprocessors() {
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  if (!limits.IsHopper()) {
    return absl::UnavailableError(absl::StrCat(
        "bf16 attention runs on Hopper (compute capability 9.0); the device "
        "has ",
        limits.compute_capability / 10, ".", limits.compute_capability % 10));
  }
  return limits.num_multiprocessors;
}

absl::StatusOr<CUtensorMap> OperandMap(const Bf16Heads& operand, int64_t heads,
                                       const AttentionBf16Shape& shape,
                                       int32_t box_rows) {
  const bool packed = shape.document_offsets != nullptr;
  return EncodeHeadsTensorMap(
      {.data = operand.data,
       .columns = shape.head_dim,
       .rows = packed ? shape.total_tokens : shape.sequence_length,
       .middle = heads,
       .outer = packed ? 1 : shape.num_sequences,
       .row_stride = operand.token_stride,
       .middle_stride = operand.head_stride,
       .outer_stride = packed ? operand.token_stride : operand.sequence_stride},
      box_rows);
}

}  // namespace millrace
