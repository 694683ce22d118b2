// AdamW of fp32 parameters on a GPU (the math stands in adamw.h), reading what
// changes from step to step from device memory, so that one captured launch
// serves every step.

#ifndef MILLRACE_KERNELS_OPTIMIZER_ADAMW_PLAIN_H_
#define MILLRACE_KERNELS_OPTIMIZER_ADAMW_PLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Device pointers, none of which overlap.
struct PlainAdamWArgs {
  float* parameters;  // The master weights where there is a bf16 copy.
  void* bf16_copy;    // A copy of the parameters, [num_elements]; or null.
  float* exp_avg;     // m; zero before the first step.
  float* exp_avg_sq;  // v; zero before the first step.
  const float* gradients;
  int64_t num_elements;  // In each tensor; zero is allowed.
  // One element each, read when the kernel runs.
  const double* learning_rate;
  const int64_t* step;       // The first is 1.
  const float* clip_factor;  // Scales the gradients; null: one.
  const int32_t* skip;       // Not zero: change nothing; null: zero.
  double beta1;              // In [0, 1), as is beta2.
  double beta2;
  double epsilon;
  double weight_decay;
};

// Enqueues on `stream`, allocates nothing. InvalidArgument names what is out of
// range. Constants are folded in double and rounded once; element by element,
// so results do not depend on how a run is cut.
absl::Status LaunchPlainAdamW(const PlainAdamWArgs& args, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_OPTIMIZER_ADAMW_PLAIN_H_
