// LayerNorm on a GPU, forward and backward, alone or of a residual sum (the
// math stands in layernorm.h, what plain means in element_type.h). A bf16
// residual is rounded before it is normalised, so that the backward pass sees
// what the forward pass normalised.

#ifndef MILLRACE_KERNELS_NORM_LAYERNORM_PLAIN_H_
#define MILLRACE_KERNELS_NORM_LAYERNORM_PLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Device pointers; void is of the element type, but for weight and bias where
// fp32_weight is set. Rows are [num_tokens, hidden] without gaps.
struct PlainLayerNormForwardArgs {
  // Not null: receives x + delta, which is then normed; may alias either. Null:
  // x is normed.
  void* residual = nullptr;
  const void* delta = nullptr;
  void* y;      // May alias x, or delta if residual does not alias the same.
  float* mean;  // [num_tokens]; kept for the backward pass, as is rstd.
  float* rstd;  // [num_tokens]
  const void* x;
  const void* weight;  // [hidden]
  const void* bias;    // [hidden]
  int64_t num_tokens;  // Zero is allowed and does nothing; below 2^31.
  int64_t hidden;      // At least one.
  float epsilon;
  bool fp32_weight = false;
};

struct PlainLayerNormBackwardArgs {
  void* d_x;        // May alias d_residual only.
  float* d_weight;  // [hidden]
  float* d_bias;    // [hidden]
  const void* d_y;
  const void* x;  // The forward pass's input.
  const float* mean;
  const float* rstd;
  const void* weight;
  const void* d_residual;  // Added to d_x; null for none.
  float* workspace;        // PlainLayerNormBackwardWorkspaceBytes().
  int64_t num_tokens;
  int64_t hidden;
  bool accumulate;  // d_weight and d_bias are added to, not overwritten.
  bool fp32_weight = false;
};

int64_t PlainLayerNormBackwardWorkspaceBytes(int64_t num_tokens,
                                             int64_t hidden);

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape.
absl::Status LaunchPlainLayerNormForward(const PlainLayerNormForwardArgs& args,
                                         ElementType type, cudaStream_t stream);
absl::Status LaunchPlainLayerNormBackward(
    const PlainLayerNormBackwardArgs& args, ElementType type,
    cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_NORM_LAYERNORM_PLAIN_H_
