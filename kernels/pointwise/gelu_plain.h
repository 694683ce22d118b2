// GELU on a GPU, forward and backward (the meaning stands in
// gelu.h, what plain means in element_type.h).

#ifndef MILLRACE_KERNELS_POINTWISE_GELU_PLAIN_H_
#define MILLRACE_KERNELS_POINTWISE_GELU_PLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"
#include "kernels/pointwise/gelu.h"

namespace millrace {

// Device pointers of the element type.
struct PlainGeluForwardArgs {
  void* y;               // [num_elements]; may be x.
  const void* x;         // [num_elements]
  int64_t num_elements;  // Zero is allowed and does nothing; below 2^39.
  GeluForm form = GeluForm::kTanh;
};

struct PlainGeluBackwardArgs {
  void* d_x;        // [num_elements]; may be x or d_y.
  const void* x;    // [num_elements]
  const void* d_y;  // [num_elements]
  int64_t num_elements;
  GeluForm form = GeluForm::kTanh;
};

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape.
absl::Status LaunchPlainGeluForward(const PlainGeluForwardArgs& args,
                                    ElementType type, cudaStream_t stream);
absl::Status LaunchPlainGeluBackward(const PlainGeluBackwardArgs& args,
                                     ElementType type, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_GELU_PLAIN_H_
