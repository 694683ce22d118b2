// Weights on a GPU from fp32, as the optimizer updates them, to e4m3 with the
// scale that the largest magnitude of a matrix chooses (cast.h). Ranks of a
// group have a part of a matrix each, so the magnitudes come from all of them.

#ifndef MILLRACE_KERNELS_POINTWISE_CAST_WEIGHTS_H_
#define MILLRACE_KERNELS_POINTWISE_CAST_WEIGHTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

struct WeightAmaxArgs {
  // Becomes the larger of what it was and the largest |x|; NaN counts as larger
  // than all. The caller sets it to zero first.
  float* amax;
  const float* x;        // [num_elements]
  int64_t num_elements;  // Zero is allowed and does nothing.
};

// y = x * scale, rounded to e4m3, by the largest of the amaxes.
struct QuantizeWeightArgs {
  void* y;               // [num_elements] 8-bit
  float* unit;           // Becomes Float8Unit() of that amax.
  const float* x;        // [num_elements]
  int64_t num_elements;  // Zero is allowed; the unit is written all the same.
  const float* amaxes;   // num_amaxes numbers, amax_stride apart.
  int64_t num_amaxes;    // One or more.
  int64_t amax_stride;
};

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape.
// Equal inputs give equal bits, those of Amax() and QuantizeFloat8() on a CPU.
// Where addresses are multiples of 16 bytes, accesses are wide.
absl::Status LaunchWeightAmax(const WeightAmaxArgs& args, cudaStream_t stream);
absl::Status LaunchQuantizeWeight(const QuantizeWeightArgs& args,
                                  cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_CAST_WEIGHTS_H_
