// Sums of bf16 tensors on a GPU.

#ifndef MILLRACE_KERNELS_POINTWISE_ELEMENTWISE_BF16_H_
#define MILLRACE_KERNELS_POINTWISE_ELEMENTWISE_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// out = a + b, in fp32 inside, rounded once to nearest. Flat bf16 buffers at
// any address; where all are multiples of 16 bytes, they are read 16 bytes at a
// time.
struct AddBf16Args {
  void* out;  // [num_elements]; may be a or b.
  const void* a;
  const void* b;
  int64_t num_elements;  // Zero is allowed and does nothing.
};

// Enqueues on `stream`, allocates nothing. InvalidArgument names a bad size.
absl::Status LaunchAddBf16(const AddBf16Args& args, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_ELEMENTWISE_BF16_H_
