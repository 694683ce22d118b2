// The gradient of a bias and its sum on a GPU (the math stands in bias.h, what
// plain means in element_type.h).

#ifndef MILLRACE_KERNELS_POINTWISE_BIAS_PLAIN_H_
#define MILLRACE_KERNELS_POINTWISE_BIAS_PLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Device pointers; void is of the element type.
struct PlainAddBiasArgs {
  void* x;           // [num_rows, num_cols]
  const void* bias;  // [num_cols]
  int64_t num_rows;  // Zero is allowed and does nothing; below 2^31.
  int64_t num_cols;
};

struct PlainBiasGradientArgs {
  float* d_bias;     // [num_cols]
  const void* d_y;   // [num_rows, num_cols]
  float* workspace;  // PlainBiasGradientWorkspaceBytes().
  int64_t num_rows;  // Zero is allowed: a sum of nothing; below 2^31.
  int64_t num_cols;
  bool accumulate;  // d_bias is added to, not overwritten.
};

int64_t PlainBiasGradientWorkspaceBytes(int64_t num_rows, int64_t num_cols);

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape. The
// order of additions depends on the sizes alone.
absl::Status LaunchPlainAddBias(const PlainAddBiasArgs& args, ElementType type,
                                cudaStream_t stream);
absl::Status LaunchPlainBiasGradient(const PlainBiasGradientArgs& args,
                                     ElementType type, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_BIAS_PLAIN_H_
