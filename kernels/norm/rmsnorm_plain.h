// RMSNorm on a GPU, alone or of a residual sum, forward and backward (the math
// stands in rmsnorm.h, what plain means in element_type.h). A residual is
// rounded to its type before it is normalised, so that the backward pass sees
// what the forward pass normalised.

#ifndef MILLRACE_KERNELS_NORM_RMSNORM_PLAIN_H_
#define MILLRACE_KERNELS_NORM_RMSNORM_PLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Device pointers; void is of the element type, but `weight`, [hidden], is fp32
// where `fp32_weight` says so. Rows are [num_tokens, hidden] without gaps.
struct PlainRmsNormForwardArgs {
  void* y;      // May alias x.
  float* rstd;  // [num_tokens]; kept for the backward pass.
  const void* x;
  const void* weight;
  int64_t num_tokens;  // Zero is allowed and does nothing; below 2^31.
  int64_t hidden;      // At least one.
  float epsilon;
  bool fp32_weight = false;
  bool adds_one = false;  // As in rmsnorm.h.
};

// The same of residual = x + delta.
struct PlainResidualRmsNormForwardArgs {
  void* residual;  // May alias x or delta.
  void* y;         // May alias x or delta, if residual does not alias the same.
  float* rstd;
  const void* x;
  const void* delta;
  const void* weight;
  int64_t num_tokens;
  int64_t hidden;
  float epsilon;
  bool fp32_weight = false;
  bool adds_one = false;  // As in rmsnorm.h.
};

struct PlainRmsNormBackwardArgs {
  void* d_x;        // May alias d_residual only.
  float* d_weight;  // [hidden]
  const void* d_y;
  const void* x;  // The forward pass's input.
  const float* rstd;
  const void* weight;
  const void* d_residual;  // Added to d_x; null for none.
  float* workspace;        // PlainRmsNormBackwardWorkspaceBytes().
  int64_t num_tokens;
  int64_t hidden;
  bool accumulate;  // d_weight is added to, not overwritten.
  bool fp32_weight = false;
  bool adds_one = false;  // As in rmsnorm.h.
};

// At most 256 bytes a column.
int64_t PlainRmsNormBackwardWorkspaceBytes(int64_t num_tokens, int64_t hidden);

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape.
absl::Status LaunchPlainRmsNormForward(const PlainRmsNormForwardArgs& args,
                                       ElementType type, cudaStream_t stream);
absl::Status LaunchPlainResidualRmsNormForward(
    const PlainResidualRmsNormForwardArgs& args, ElementType type,
    cudaStream_t stream);
absl::Status LaunchPlainRmsNormBackward(const PlainRmsNormBackwardArgs& args,
                                        ElementType type, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_NORM_RMSNORM_PLAIN_H_
