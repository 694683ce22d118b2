// SwiGLU (Shazeer, "GLU Variants Improve Transformer", 2020):
//   activation[t, f] = silu(gate[t, f]) * up[t, f],
//   silu(x) = x sigmoid(x) = x / (1 + exp(-x)).
// With another gate, GeGLU: gelu of gelu.h in its tanh form stands for silu.

#ifndef MILLRACE_KERNELS_POINTWISE_SWIGLU_H_
#define MILLRACE_KERNELS_POINTWISE_SWIGLU_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

enum class GluGate { kSilu, kGelu };

struct SwigluForwardArgs {
  float* activation;     // [num_tokens, ffn_hidden]
  const float* gate_up;  // [num_tokens, 2 ffn_hidden], gate columns first.
  int64_t num_tokens;    // Zero is allowed and does nothing.
  int64_t ffn_hidden;    // At least one.
  GluGate gate = GluGate::kSilu;
};

// d_gate = d_activation up silu'(gate), d_up = d_activation silu(gate).
struct SwigluBackwardArgs {
  float* d_gate_up;           // [num_tokens, 2 ffn_hidden]; may alias gate_up.
  const float* gate_up;       // [num_tokens, 2 ffn_hidden]
  const float* d_activation;  // [num_tokens, ffn_hidden]
  int64_t num_tokens;
  int64_t ffn_hidden;
  GluGate gate = GluGate::kSilu;
};

// InvalidArgument names a bad shape. Results do not depend on num_threads.
absl::Status SwigluForward(const SwigluForwardArgs& args, int num_threads);
absl::Status SwigluBackward(const SwigluBackwardArgs& args, int num_threads);

// The meaning of the kernels in plain loops.
void SwigluForwardReference(const SwigluForwardArgs& args);
void SwigluBackwardReference(const SwigluBackwardArgs& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_SWIGLU_H_
