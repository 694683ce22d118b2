// SwiGLU of bf16 tensors on a GPU (the math stands in swiglu.h):
//   activation = silu(gate) * up, or with another gate gelu(gate) * up.

#ifndef MILLRACE_KERNELS_POINTWISE_SWIGLU_BF16_H_
#define MILLRACE_KERNELS_POINTWISE_SWIGLU_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"
#include "kernels/pointwise/swiglu.h"

namespace millrace {

// [num_tokens, ffn_hidden] bf16, rows `row_stride` elements apart, so that
// halves of a fused [num_tokens, 2 ffn_hidden] projection are used in place
// (gate = p, up = p + ffn_hidden, both with row_stride 2 ffn_hidden). Any
// address, stride and length will do; where all of a call are multiples of
// eight elements, rows are read 16 bytes at a time.
struct Bf16Rows {
  void* data;
  int64_t row_stride;
};

struct SwigluForwardBf16Args {
  Bf16Rows activation;  // May be gate or up itself.
  Bf16Rows gate;
  Bf16Rows up;
  int64_t num_tokens;  // Zero is allowed and does nothing.
  int64_t ffn_hidden;  // At least one.
  GluGate kind = GluGate::kSilu;
  float* amax = nullptr;  // Not null: raised to the largest |activation|.
};

// d_gate = d_activation up silu'(gate), d_up = d_activation silu(gate).
struct SwigluBackwardBf16Args {
  Bf16Rows d_gate;  // May be gate itself.
  Bf16Rows d_up;    // May be up itself.
  // Not null: the activation again, for the gradient of the weight after it.
  // May be d_activation itself.
  Bf16Rows activation;
  Bf16Rows gate;
  Bf16Rows up;
  Bf16Rows d_activation;
  int64_t num_tokens;
  int64_t ffn_hidden;
  GluGate kind = GluGate::kSilu;
  // Not null: raised to the largest magnitude of d_gate and d_up together.
  float* amax = nullptr;
};

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape. In
// fp32 inside, rounded once to nearest.
absl::Status LaunchSwigluForwardBf16(const SwigluForwardBf16Args& args,
                                     cudaStream_t stream);
absl::Status LaunchSwigluBackwardBf16(const SwigluBackwardBf16Args& args,
                                      cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_SWIGLU_BF16_H_
