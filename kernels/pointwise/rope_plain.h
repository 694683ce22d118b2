// Rotary position embedding on a GPU, in place in the packed projection (the
// math stands in rope.h, what plain means in element_type.h).

#ifndef MILLRACE_KERNELS_POINTWISE_ROPE_PLAIN_H_
#define MILLRACE_KERNELS_POINTWISE_ROPE_PLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Device pointers; void is of the element type.
struct PlainRopeArgs {
  void* qkv;  // [num_tokens, (num_heads + 2 num_kv_heads) head_dim]: the query
              // heads, the key heads (both turned in place), the value heads
              // (untouched).
  const float* table;       // FillRopeTable(sequence_length, head_dim).
  int64_t num_tokens;       // Token t has position t % sequence_length; zero is
                            // allowed and does nothing; below 2^31.
  int64_t sequence_length;  // At least one.
  int64_t num_heads;        // At least one, as is num_kv_heads.
  int64_t num_kv_heads;
  int64_t head_dim;        // Even.
  bool inverse;            // Turns back: the backward pass.
  int64_t rotary_dim = 0;  // As in rope.h.
};

// Enqueues on `stream`, allocates nothing. InvalidArgument names a bad shape.
absl::Status LaunchPlainRope(const PlainRopeArgs& args, ElementType type,
                             cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_ROPE_PLAIN_H_
