#include "kernels/attention_bf16_shape.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/tensor_map.h"

namespace millrace {

absl::Status CheckAttentionBf16Shape(const AttentionBf16Shape& shape) {
  if (shape.head_dim != 64 && shape.head_dim != 128) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bf16 attention has head_dim 64 and 128; got ", shape.head_dim));
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
  if (shape.window != 0 || shape.document_offsets != nullptr) {
    return absl::InvalidArgumentError(
        "bf16 attention takes no window and no packed documents yet");
  }
  // Tiles and rows are counted in 32 bits on the device.
  if (shape.num_sequences * shape.num_heads * shape.sequence_length >
      std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("bf16 attention takes at most 2^31 - 1 query rows; got ",
                     shape.num_sequences, " sequences x ", shape.num_heads,
                     " heads x ", shape.sequence_length, " tokens"));
  }
  return absl::OkStatus();
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
  return EncodeHeadsTensorMap({.data = operand.data,
                               .columns = shape.head_dim,
                               .rows = shape.sequence_length,
                               .middle = heads,
                               .outer = shape.num_sequences,
                               .row_stride = operand.token_stride,
                               .middle_stride = operand.head_stride,
                               .outer_stride = operand.sequence_stride},
                              box_rows);
}

}  // namespace millrace
