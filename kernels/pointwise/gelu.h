// GELU (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016): y = x P(x)
// with the normal distribution P, exactly, P(x) = (1 + erf(x / sqrt 2)) / 2, or
// as the tanh form that GPT-2 uses, P(x) = (1 + tanh(sqrt(2 / pi) (x + 0.044715
// x^3))) / 2.

#ifndef MILLRACE_KERNELS_POINTWISE_GELU_H_
#define MILLRACE_KERNELS_POINTWISE_GELU_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

enum class GeluForm { kTanh, kErf };

struct GeluForwardArgs {
  float* y;        // [num_elements]; may be x.
  const float* x;  // [num_elements]
  int64_t num_elements;
  GeluForm form = GeluForm::kTanh;
};

// d_x = d_y (P(x) + x P'(x)).
struct GeluBackwardArgs {
  float* d_x;        // [num_elements]; may be x or d_y.
  const float* x;    // [num_elements]
  const float* d_y;  // [num_elements]
  int64_t num_elements;
  GeluForm form = GeluForm::kTanh;
};

// InvalidArgument names a bad shape.
absl::Status GeluForward(const GeluForwardArgs& args, int num_threads);
absl::Status GeluBackward(const GeluBackwardArgs& args, int num_threads);

// The meaning of the kernels in plain loops.
void GeluForwardReference(const GeluForwardArgs& args);
void GeluBackwardReference(const GeluBackwardArgs& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_GELU_H_
