// The bias of a product: x[t, c] += bias[c], and its gradient
// d_bias[c] (+)= sum over t of d_y[t, c].
//
// Both functions return InvalidArgument naming a bad shape. Results do not
// depend on num_threads.

#ifndef MILLRACE_KERNELS_POINTWISE_BIAS_H_
#define MILLRACE_KERNELS_POINTWISE_BIAS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

// Row-major fp32. The caller owns every pointer.
struct AddBiasArgs {
  float* x;           // [num_rows, num_cols]
  const float* bias;  // [num_cols]
  int64_t num_rows;   // Zero is allowed.
  int64_t num_cols;   // At least one.
};

struct BiasGradientArgs {
  float* d_bias;     // [num_cols]
  const float* d_y;  // [num_rows, num_cols]
  int64_t num_rows;  // Zero is allowed: a sum of nothing.
  int64_t num_cols;  // At least one.
  bool accumulate;   // d_bias is added to, not overwritten.
};

absl::Status AddBias(const AddBiasArgs& args, int num_threads);
absl::Status BiasGradient(const BiasGradientArgs& args, int num_threads);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_BIAS_H_
