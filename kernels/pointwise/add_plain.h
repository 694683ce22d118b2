// The sum of two flat runs on a GPU (what plain means stands in
// element_type.h). Their squared norm, of either type, is in
// gradient_norm_bf16.h.

#ifndef MILLRACE_KERNELS_POINTWISE_ADD_PLAIN_H_
#define MILLRACE_KERNELS_POINTWISE_ADD_PLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// out = a + b; out may alias either. Device pointers of the element type.
struct PlainAddArgs {
  void* out;
  const void* a;
  const void* b;
  int64_t num_elements;  // Zero is allowed and does nothing; below 2^39.
};

// Enqueues on `stream`, allocates nothing. InvalidArgument names a bad size.
absl::Status LaunchPlainAdd(const PlainAddArgs& args, ElementType type,
                            cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_ADD_PLAIN_H_
