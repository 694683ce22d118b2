// AdamW on a GPU whose moments are stored in blocks of 8-bit codes (moments.h;
// the math stands in adamw.h). The moments' bits are those of the CPU's AdamW()
// of the same gradients.

#ifndef MILLRACE_KERNELS_OPTIMIZER_ADAMW_8BIT_H_
#define MILLRACE_KERNELS_OPTIMIZER_ADAMW_8BIT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"
#include "kernels/optimizer/adamw_bf16.h"
#include "kernels/optimizer/moments.h"

namespace millrace {

// Buffers are on the device and do not overlap. Moments begin at multiples of 4
// bytes, the others at multiples of 16.
struct AdamW8bitArgs {
  float* master;            // [num_elements]
  void* weights;            // A copy of the master weights in bf16; or null.
  MomentBlock* exp_avg;     // m, [num_elements / kMomentBlockSize]
  MomentBlock* exp_avg_sq;  // v, as many.
  const float* gradients;   // [num_elements]
  int64_t num_elements;     // A multiple of kMomentBlockSize; zero is allowed.
  double beta1;             // In [0, 1), as is beta2.
  double beta2;
  double epsilon;
  double weight_decay;
  // Read on the device when the kernel runs.
  const AdamWStep* device_step;
  const float* clip_factor;  // Scales the gradients; null: one.
  const int32_t* skip;       // Not zero: change nothing; null: zero.
};

// Enqueues on `stream`, allocates nothing. InvalidArgument names what is out of
// range. An element is 16 bytes read and written, or 18 with a copy.
absl::Status LaunchAdamW8bit(const AdamW8bitArgs& args, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_OPTIMIZER_ADAMW_8BIT_H_
