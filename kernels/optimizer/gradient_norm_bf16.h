// The norm of all gradients and what follows from it for the optimizer, without
// the host ever waiting: each buffer adds its squared norm to one sum on the
// device (which ranks may add up among themselves), and one last launch turns
// the sum into norm, clip factor and the word to skip a step gone wrong.

#ifndef MILLRACE_KERNELS_OPTIMIZER_GRADIENT_NORM_BF16_H_
#define MILLRACE_KERNELS_OPTIMIZER_GRADIENT_NORM_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// *sum += share * sum of x[i]^2; with `overwrite` the sum begins at zero.
struct SquaredNormBf16Args {
  double* sum;    // On the device.
  const void* x;  // [num_elements] fp32, or bf16 with is_bf16; any address
  int64_t num_elements;  //   that is a multiple of the element's size.
  bool is_bf16;
  bool overwrite;
  double share = 1.0;  // Less for what several ranks hold alike.
  // SquaredNormBf16WorkspaceBytes(), 8-byte aligned, zero before the first
  // launch; every launch leaves it ready for the next. Launches that may
  // overlap need their own.
  void* workspace;
};

int64_t SquaredNormBf16WorkspaceBytes();

// norm = *scale sqrt(*sum), clip_factor = *scale min(1, max_norm / (norm +
// 1e-6)): the gradients that `sum` was made of lack the factor `scale`. skip is
// one where the norm or the loss is infinite or NaN, else zero. The host learns
// of that when it has enqueued more steps. `hold` makes the device skip those
// too.
struct GradientNormBf16Args {
  float* norm;         // On the device, as are all; each but sum may be null.
  float* clip_factor;  // Zero where the step is to be skipped.
  int32_t* skip;
  const double* sum;
  double max_norm;                // Above zero; infinity never clips.
  const double* loss = nullptr;   // On the device; null: counts as finite.
  const double* scale = nullptr;  // On the device; null: one.
  // On the device; null: none. Set to one where the norm or the loss is not
  // finite. As long as it is not zero, skip is one whatever the norm.
  int32_t* hold = nullptr;
};

// Enqueue on `stream`, allocate nothing. InvalidArgument names what is out of
// range. Squares are added in an order that depends on num_elements and on
// x modulo 16 alone, in fp32 by the thirty-two and then in fp64, so that equal
// inputs give equal bits on every GPU.
absl::Status LaunchSquaredNormBf16(const SquaredNormBf16Args& args,
                                   cudaStream_t stream);
absl::Status LaunchGradientNormBf16(const GradientNormBf16Args& args,
                                    cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_OPTIMIZER_GRADIENT_NORM_BF16_H_
