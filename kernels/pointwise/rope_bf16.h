// Rotary position embedding of bf16 queries and keys on a GPU, in place in the
// packed projection or out of it, with RMSNorm of each head before it if wanted
// (Henry et al., "Query-Key Normalization", 2020; the math stands in rope.h and
// rmsnorm.h). Forward with QK-norm, of the head x with the weight w of its
// kind:
//   out = turn(x rstd w), rstd = 1 / sqrt(mean of x^2 + epsilon).
//
// Values are turned in fp32 and rounded once. Without QK-norm nothing is kept
// for the backward pass. With QK-norm the backward pass reads the projection as
// it was before and rstd. The caller writes `out` apart from `qkv`, and may
// drop `out` after attention and make it again from `qkv` in one more pass; or
// it works in place and has the heads copied to `raw`.

#ifndef MILLRACE_KERNELS_POINTWISE_ROPE_BF16_H_
#define MILLRACE_KERNELS_POINTWISE_ROPE_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Token rows are num_heads query heads, num_kv_heads key heads and whatever
// follows (the value heads), each of head_dim bf16 elements; what follows is
// neither read nor written. num_tokens (num_heads + num_kv_heads) is at most
// 2^30.
struct RopeBf16Shape {
  int64_t num_tokens;  // Zero is allowed and does nothing.
  int64_t num_heads;   // At least one, as is num_kv_heads.
  int64_t num_kv_heads;
  int64_t head_dim;  // A multiple of 16 up to 512.
  // Token t has position t % sequence_length, unless there are position_ids.
  int64_t sequence_length;  // At least one.
  // Positions of the table; at least sequence_length without position_ids.
  int64_t table_length;
  // Elements at the start of each head that turn, as in rope.h: a multiple of
  // 16, and the table's size. 0: all of them, as with QK-norm always. The other
  // elements are not written, so `out` must be `qkv`.
  int64_t rotary_dim = 0;
};

// Device pointers; void is bf16, at multiples of 16 bytes. Strides are in
// elements, multiples of 8.
struct RopeForwardBf16Args {
  void* out;  // [num_tokens, heads, head_dim]; may be qkv itself, or apart.
  int64_t out_token_stride;
  const void* qkv;
  int64_t qkv_token_stride;
  const float* table;           // FillRopeTable(table_length, head_dim).
  const int32_t* position_ids;  // [num_tokens] in [0, table_length), or null.
  const void* q_weight;         // [head_dim]; null, as is k_weight: no QK-norm.
  const void* k_weight;
  float* rstd;  // [num_tokens, num_heads + num_kv_heads], with QK-norm.
  // [num_tokens, num_heads + num_kv_heads, head_dim]; the heads as they were,
  // or null. With QK-norm only, as is fp32_weight.
  void* raw;
  float epsilon;
  bool fp32_weight;       // The weights are fp32 instead of bf16.
  bool adds_one = false;  // Heads are multiplied by 1 + weight.
  RopeBf16Shape shape;
};

struct RopeBackwardBf16Args {
  // The gradient of `out`, which becomes the gradient of the projection.
  void* d_qkv;
  int64_t d_qkv_token_stride;
  const float* table;
  const int32_t* position_ids;
  // The rest with QK-norm only.
  const void* q_weight;
  const void* k_weight;
  const void* qkv;  // The forward pass's input, or its `raw`.
  int64_t qkv_token_stride;
  const float* rstd;
  float* d_q_weight;  // [head_dim]
  float* d_k_weight;
  bool accumulate;  // d_q_weight and d_k_weight are added to, not overwritten.
  bool fp32_weight;
  bool adds_one = false;
  void* workspace;  // RopeBackwardBf16WorkspaceBytes(), 16-byte aligned.
  RopeBf16Shape shape;
  // Not null: raised to the largest magnitude of the whole gradient of the
  // projection, num_kv_heads value heads after the keys included. A second
  // small kernel reads the value heads. Where only part of each head turns, it
  // reads all heads.
  float* amax = nullptr;
};

// With QK-norm; without, the backward pass needs none.
int64_t RopeBackwardBf16WorkspaceBytes(const RopeBf16Shape& shape);

// Enqueue on `stream`, allocate nothing. InvalidArgument names a shape that
// cannot be. Equal inputs give equal bits on devices with as many
// multiprocessors: the gradients of the weights are summed in a fixed order.
absl::Status LaunchRopeForwardBf16(const RopeForwardBf16Args& args,
                                   cudaStream_t stream);
absl::Status LaunchRopeBackwardBf16(const RopeBackwardBf16Args& args,
                                    cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_ROPE_BF16_H_
