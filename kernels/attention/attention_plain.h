// Causal grouped-query attention within documents on a GPU (the math stands in
// attention.h, what plain means in element_type.h), without tensor cores, for
// any head dim up to kMaxAttentionHeadDim. Tiles of queries and keys go through
// shared memory as fp32.
//
// The backward pass computes the probabilities twice, once for the gradients of
// keys and values and once for those of queries: each element then has one
// writer, and no addition depends on timing.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_PLAIN_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_PLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention/attention.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Device pointers; void is of the element type. Shapes and packing are those of
// attention.h; T = num_sequences * sequence_length is below 2^31. A document
// start outside [0, position] is taken for the nearest that is inside.
struct PlainAttentionForwardArgs {
  void* o;                         // [T, num_heads * head_dim]
  float* lse;                      // [num_heads, T]
  const void* qkv;                 // [T, (num_heads + 2 num_kv_heads) head_dim]
  const int32_t* document_starts;  // [T], within the sequence.
  AttentionShape shape;
};

struct PlainAttentionBackwardArgs {
  void* d_qkv;   // Packed like qkv; overwritten.
  float* delta;  // [num_heads, T]
  const void* qkv;
  const int32_t* document_starts;
  const void* o;     // [T, num_heads * head_dim]
  const float* lse;  // [num_heads, T]
  const void* d_o;   // [T, num_heads * head_dim]
  AttentionShape shape;
};

// Enqueue on `stream`, allocate nothing. Outputs alias no input.
// InvalidArgument names a bad shape.
absl::Status LaunchPlainAttentionForward(const PlainAttentionForwardArgs& args,
                                         ElementType type, cudaStream_t stream);
absl::Status LaunchPlainAttentionBackward(
    const PlainAttentionBackwardArgs& args, ElementType type,
    cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_PLAIN_H_
