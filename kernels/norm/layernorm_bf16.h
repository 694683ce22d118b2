// LayerNorm of bf16 rows on a GPU, forward and backward, alone or of a residual
// sum (the math stands in layernorm.h). Sums and statistics are fp32; each
// output is rounded once. A residual is rounded to bf16 before it is
// normalised, so that the backward pass sees what the forward pass normalised.

#ifndef MILLRACE_KERNELS_NORM_LAYERNORM_BF16_H_
#define MILLRACE_KERNELS_NORM_LAYERNORM_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Device pointers; void is bf16, but for weight and bias where fp32_weight is
// set, at multiples of 16 bytes. Rows are [num_tokens, hidden] without gaps;
// hidden is a multiple of 8 up to 65536.
struct LayerNormForwardBf16Args {
  void* y;      // May alias x.
  float* mean;  // [num_tokens]; kept for the backward pass, as is rstd.
  float* rstd;  // [num_tokens]
  const void* x;
  const void* weight;  // [hidden]
  const void* bias;    // [hidden]
  int64_t num_tokens;  // Below 2^31; zero is allowed and does nothing.
  int64_t hidden;
  float epsilon;
  bool fp32_weight = false;
  float* amax = nullptr;  // Not null: raised to the largest |y|.
};

// The same of residual = x + delta.
struct ResidualLayerNormForwardBf16Args {
  void* residual;  // May alias x or delta.
  void* y;         // May alias x or delta, if residual does not alias the same.
  float* mean;
  float* rstd;
  const void* x;
  const void* delta;
  const void* weight;
  const void* bias;
  int64_t num_tokens;
  int64_t hidden;
  float epsilon;
  bool fp32_weight = false;
  float* amax = nullptr;  // Not null: raised to the largest |y|.
};

struct LayerNormBackwardBf16Args {
  void* d_x;        // May alias d_residual only.
  float* d_weight;  // [hidden]
  float* d_bias;    // [hidden]
  const void* d_y;
  const void* x;  // The forward pass's input.
  const float* mean;
  const float* rstd;
  const void* weight;
  const void* d_residual;  // Added to d_x; null for none.
  void* workspace;  // LayerNormBackwardBf16WorkspaceBytes(), 16-byte aligned.
  int64_t num_tokens;
  int64_t hidden;
  bool accumulate;  // d_weight and d_bias are added to, not overwritten.
  bool fp32_weight = false;
  float* amax = nullptr;  // Not null: raised to the largest |d_x|.
};

// Zero if the shape is refused below.
int64_t LayerNormBackwardBf16WorkspaceBytes(int64_t num_tokens, int64_t hidden);

// Enqueue on `stream`, allocate nothing. InvalidArgument names a shape that
// cannot be. Equal inputs give equal bits on devices with as many
// multiprocessors: d_weight and d_bias are summed in a fixed order.
absl::Status LaunchLayerNormForwardBf16(const LayerNormForwardBf16Args& args,
                                        cudaStream_t stream);
absl::Status LaunchResidualLayerNormForwardBf16(
    const ResidualLayerNormForwardBf16Args& args, cudaStream_t stream);
absl::Status LaunchLayerNormBackwardBf16(const LayerNormBackwardBf16Args& args,
                                         cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_NORM_LAYERNORM_BF16_H_
