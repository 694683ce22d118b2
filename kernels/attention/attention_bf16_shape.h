// Checks and tensor maps that the forward and the backward pass of bf16
// attention share.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_SHAPE_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_SHAPE_H_

#include <cuda.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention/attention_bf16.h"

namespace millrace {

// Checks the shape against the contract; each pass refuses the shapes that it
// has no kernel for.
absl::Status CheckAttentionBf16Shape(const AttentionBf16Shape& shape);

// InvalidArgument if the shape has a softcap, which the kernels with Hopper's
// instructions lack.
absl::Status CheckNoSoftcap(const AttentionBf16Shape& shape);

// Multiprocessors of the current device; Unavailable unless it is a Hopper.
absl::StatusOr<int> NumHopperMultiprocessors();

// The map of one operand with `heads` heads, in boxes of `box_rows` tokens.
absl::StatusOr<CUtensorMap> OperandMap(const Bf16Heads& operand, int64_t heads,
                                       const AttentionBf16Shape& shape,
                                       int32_t box_rows);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_SHAPE_H_
