// SwiGLU on a GPU, forward and backward (the math stands in swiglu.h, what
// plain means in element_type.h).

#ifndef MILLRACE_KERNELS_POINTWISE_SWIGLU_PLAIN_H_
#define MILLRACE_KERNELS_POINTWISE_SWIGLU_PLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"
#include "kernels/pointwise/swiglu.h"

namespace millrace {

// Device pointers; void is of the element type.
struct PlainSwigluForwardArgs {
  void* activation;     // [num_tokens, ffn_hidden]
  const void* gate_up;  // [num_tokens, 2 ffn_hidden], gate columns first.
  int64_t num_tokens;   // Zero is allowed and does nothing; below 2^31.
  int64_t ffn_hidden;   // At least one.
  GluGate gate = GluGate::kSilu;
};

struct PlainSwigluBackwardArgs {
  void* d_gate_up;           // [num_tokens, 2 ffn_hidden]; may alias gate_up.
  const void* gate_up;       // [num_tokens, 2 ffn_hidden]
  const void* d_activation;  // [num_tokens, ffn_hidden]
  int64_t num_tokens;
  int64_t ffn_hidden;
  GluGate gate = GluGate::kSilu;
};

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape.
absl::Status LaunchPlainSwigluForward(const PlainSwigluForwardArgs& args,
                                      ElementType type, cudaStream_t stream);
absl::Status LaunchPlainSwigluBackward(const PlainSwigluBackwardArgs& args,
                                       ElementType type, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_SWIGLU_PLAIN_H_
