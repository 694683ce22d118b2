// GELU of bf16 tensors on a GPU (the math stands in gelu.h).

#ifndef MILLRACE_KERNELS_POINTWISE_GELU_BF16_H_
#define MILLRACE_KERNELS_POINTWISE_GELU_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"
#include "kernels/pointwise/gelu.h"

namespace millrace {

// Flat bf16 buffers at any address; where all are multiples of 16 bytes, they
// are read 16 bytes at a time.
struct GeluForwardBf16Args {
  void* y;               // [num_elements]; may be x.
  const void* x;         // [num_elements]
  int64_t num_elements;  // Zero is allowed and does nothing.
  GeluForm form = GeluForm::kTanh;
};

struct GeluBackwardBf16Args {
  void* d_x;  // [num_elements]; may be x or d_y.
  // Not null: gelu(x) again, for the gradient of the weight after it. May be x
  // or d_y where d_x is not.
  void* y;
  const void* x;    // [num_elements]
  const void* d_y;  // [num_elements]
  int64_t num_elements;
  GeluForm form = GeluForm::kTanh;
};

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad size. In
// fp32 inside, rounded once to nearest.
absl::Status LaunchGeluForwardBf16(const GeluForwardBf16Args& args,
                                   cudaStream_t stream);
absl::Status LaunchGeluBackwardBf16(const GeluBackwardBf16Args& args,
                                    cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_GELU_BF16_H_
