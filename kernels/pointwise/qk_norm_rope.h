// RMSNorm of each query head and each key head, then the rotation of rope.h
// (Henry et al., "Query-Key Normalization", 2020). For a head x with the weight
// w of its kind:
//   x := turn(x rstd w), rstd = 1 / sqrt(mean of x^2 + epsilon).
//
// Both functions return InvalidArgument naming a bad shape. Results do not
// depend on num_threads.

#ifndef MILLRACE_KERNELS_POINTWISE_QK_NORM_ROPE_H_
#define MILLRACE_KERNELS_POINTWISE_QK_NORM_ROPE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

struct QkNormRopeShape {
  int64_t num_tokens;       // Token t has position t % sequence_length.
  int64_t sequence_length;  // At least one.
  int64_t num_heads;        // At least one, as is num_kv_heads.
  int64_t num_kv_heads;
  int64_t head_dim;       // Even.
  bool adds_one = false;  // Heads are multiplied by 1 + weight.

  int64_t num_normed() const { return num_heads + num_kv_heads; }
  int64_t row() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

// fp32. The caller owns every pointer; none overlaps another.
struct QkNormRopeForwardArgs {
  float* qkv;   // [num_tokens, row()]: the query heads, the key heads (both
                // normed and turned in place), the value heads (untouched).
  float* raw;   // [num_tokens, num_normed(), head_dim]: query and key heads as
                // they were; kept for the backward pass, as is rstd.
  float* rstd;  // [num_tokens, num_normed()]
  const float* q_weight;  // [head_dim]
  const float* k_weight;
  const float* table;  // FillRopeTable() of sequence_length and head_dim.
  float epsilon;
  QkNormRopeShape shape;
};

struct QkNormRopeBackwardArgs {
  float* d_qkv;       // [num_tokens, row()]; in place, value heads untouched.
  float* d_q_weight;  // [head_dim]
  float* d_k_weight;
  const float* raw;
  const float* rstd;
  const float* q_weight;
  const float* k_weight;
  const float* table;
  QkNormRopeShape shape;
  bool accumulate;  // Gradients of weights are added to, not overwritten.
};

absl::Status QkNormRopeForward(const QkNormRopeForwardArgs& args,
                               int num_threads);
absl::Status QkNormRopeBackward(const QkNormRopeBackwardArgs& args,
                                int num_threads);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_QK_NORM_ROPE_H_
