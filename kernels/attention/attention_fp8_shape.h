// The checks that the fp8 attention kernel shares with its quantizer.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_SHAPE_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_SHAPE_H_

#include "absl/status/status.h"
#include "kernels/attention/attention_fp8.h"

namespace millrace {

absl::Status CheckAttentionFp8Shape(const AttentionFp8Shape& shape);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_SHAPE_H_
