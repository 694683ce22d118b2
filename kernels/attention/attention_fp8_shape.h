// The checks that the kernels of attention in 8 bits share.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_SHAPE_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_SHAPE_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/attention/attention_fp8.h"

namespace millrace {

// InvalidArgument names the shape that cannot be.
inline absl::Status CheckAttentionFp8Shape(const AttentionFp8Shape& shape) {
  if (shape.head_dim != 64 && shape.head_dim != 128) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fp8 attention has head_dim 64 and 128; got ", shape.head_dim));
  }
  if (shape.num_sequences < 0 || shape.sequence_length < 1 ||
      shape.num_kv_heads < 1 || shape.num_heads < 1 ||
      shape.num_heads % shape.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fp8 attention got ", shape.num_sequences, " sequences of ",
        shape.sequence_length, " tokens, ", shape.num_heads,
        " query heads over ", shape.num_kv_heads,
        " key-value heads; lengths must be positive and the query heads a "
        "multiple of the key-value heads"));
  }
  if (shape.document_starts != nullptr && !shape.causal) {
    return absl::InvalidArgumentError(
        "fp8 attention within documents is causal; got documents without it");
  }
  constexpr int64_t kGridLimit = 65535;
  if (std::max(shape.num_sequences, shape.num_heads) > kGridLimit) {
    return absl::InvalidArgumentError(
        absl::StrCat("fp8 attention takes at most ", kGridLimit,
                     " sequences and as many heads; got ", shape.num_sequences,
                     " and ", shape.num_heads));
  }
  // Tiles and rows are counted in 32 bits on the device.
  if (shape.num_sequences * shape.num_heads * shape.sequence_length >
      std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fp8 attention takes at most 2^31 - 1 query rows; got ",
                     shape.num_sequences, " sequences x ", shape.num_heads,
                     " heads x ", shape.sequence_length, " tokens"));
  }
  return absl::OkStatus();
}

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_SHAPE_H_
