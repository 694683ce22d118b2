// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019)
// over a flat run of parameters, with g = gradient_scale * gradients:
//   p -= learning_rate weight_decay p
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   p -= learning_rate / (1 - beta1^step) m
//        / (sqrt(v / (1 - beta2^step)) + epsilon)

#ifndef MILLRACE_KERNELS_OPTIMIZER_ADAMW_H_
#define MILLRACE_KERNELS_OPTIMIZER_ADAMW_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

struct AdamWArgs {
  float* parameters;
  float* exp_avg;     // m; zero before the first step.
  float* exp_avg_sq;  // v; zero before the first step.
  const float* gradients;
  int64_t num_elements;  // In each tensor; zero is allowed.
  double learning_rate;
  double beta1;  // In [0, 1), as is beta2.
  double beta2;
  double epsilon;
  double weight_decay;
  int64_t step;               // At least one; the first is 1.
  double gradient_scale = 1;  // The clip factor.
};

// InvalidArgument names what is out of range. Element by element, so results
// depend on neither num_threads nor how a run is cut.
absl::Status AdamW(const AdamWArgs& args, int num_threads);

// The meaning of the kernel in plain loops.
void AdamWReference(const AdamWArgs& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_OPTIMIZER_ADAMW_H_
