// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019)
// over a flat run of parameters, with g = gradient_scale * gradients:
//   p -= learning_rate weight_decay p
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   p -= learning_rate / (1 - beta1^step) m
//        / (sqrt(v / (1 - beta2^step)) + epsilon)
//
// The moments may be stored in fewer bits (moments.h). The update reads them
// before they are rounded. bf16 is rounded stochastically, since rounding to
// nearest would lose every change below 1/256 of a value: an element has 32
// bits, word index % 4 of Philox4x32 (random_normal.h) with counter (index / 4,
// step) and key seed, of which the lower half rounds m and the upper half v.
// Stored moments have the same bits on a GPU (adamw_bf16.h, adamw_8bit.h).

#ifndef MILLRACE_KERNELS_OPTIMIZER_ADAMW_H_
#define MILLRACE_KERNELS_OPTIMIZER_ADAMW_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/optimizer/moments.h"

namespace millrace {

struct AdamWArgs {
  float* parameters;
  void* exp_avg;     // m, stored as `moments` says; zero before the first step.
  void* exp_avg_sq;  // v; the same.
  const float* gradients;
  // In each tensor; zero is allowed. A multiple of kMomentBlockSize in blocks.
  int64_t num_elements;
  double learning_rate;
  double beta1;  // In [0, 1), as is beta2.
  double beta2;
  double epsilon;
  double weight_decay;
  int64_t step;               // At least one; the first is 1.
  double gradient_scale = 1;  // The clip factor.
  MomentStorage moments = MomentStorage::kFloat32;
  uint64_t seed = 0;  // For stochastic rounding.
  // The index of element 0 there; a multiple of four.
  int64_t first_index = 0;
};

// InvalidArgument names what is out of range. Element by element, or block by
// block, so results depend on neither num_threads nor how a run is cut.
absl::Status AdamW(const AdamWArgs& args, int num_threads);

// The meaning of the kernel in plain loops. Rounds moments in bf16 to nearest.
void AdamWReference(const AdamWArgs& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_OPTIMIZER_ADAMW_H_
