// RMSNorm of bf16 rows on a GPU, forward and backward, alone or of a residual
// sum (the math stands in rmsnorm.h). Sums and statistics are fp32; each output
// is rounded once. A residual is rounded to bf16 before it is normalised, so
// that the backward pass sees what the forward pass normalised.

#ifndef MILLRACE_KERNELS_NORM_RMSNORM_BF16_H_
#define MILLRACE_KERNELS_NORM_RMSNORM_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Device pointers; void is bf16, at multiples of 16 bytes. Rows are
// [num_tokens, hidden] without gaps; hidden is a multiple of 8 up to 65536.
// `weight` is [hidden]: fp32 where `fp32_weight` says so, else bf16. Weights
// near one move by less than bf16 can show.
struct RmsNormForwardBf16Args {
  void* y;      // May alias x.
  float* rstd;  // [num_tokens]; kept for the backward pass.
  const void* x;
  const void* weight;
  int64_t num_tokens;  // Below 2^31; zero is allowed and does nothing.
  int64_t hidden;
  float epsilon;
  bool fp32_weight = false;
  bool adds_one = false;  // As in rmsnorm.h; with fp32_weight only.
  float* amax = nullptr;  // Not null: raised to the largest |y|.
};

// The same of residual = x + delta.
struct ResidualRmsNormForwardBf16Args {
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
  bool adds_one = false;  // As in rmsnorm.h; with fp32_weight only.
  float* amax = nullptr;  // Not null: raised to the largest |y|.
};

struct RmsNormBackwardBf16Args {
  void* d_x;        // May alias d_residual only.
  float* d_weight;  // [hidden]
  const void* d_y;
  const void* x;  // The forward pass's input.
  const float* rstd;
  const void* weight;
  const void* d_residual;  // Added to d_x; null for none.
  void* workspace;  // RmsNormBackwardBf16WorkspaceBytes(), 16-byte aligned.
  int64_t num_tokens;
  int64_t hidden;
  bool accumulate;  // d_weight is added to, not overwritten.
  bool fp32_weight = false;
  bool adds_one = false;  // As in rmsnorm.h; with fp32_weight only.
  float* amax = nullptr;  // Not null: raised to the largest |d_x|.
};

// Zero if the shape is refused below.
int64_t RmsNormBackwardBf16WorkspaceBytes(int64_t num_tokens, int64_t hidden);

// Enqueue on `stream`, allocate nothing. InvalidArgument names a shape that
// cannot be. Equal inputs give equal bits on devices with as many
// multiprocessors: d_weight is summed in a fixed order.
absl::Status LaunchRmsNormForwardBf16(const RmsNormForwardBf16Args& args,
                                      cudaStream_t stream);
absl::Status LaunchResidualRmsNormForwardBf16(
    const ResidualRmsNormForwardBf16Args& args, cudaStream_t stream);
absl::Status LaunchRmsNormBackwardBf16(const RmsNormBackwardBf16Args& args,
                                       cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_NORM_RMSNORM_BF16_H_
