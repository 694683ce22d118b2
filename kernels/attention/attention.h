// Causal grouped-query attention within documents. For query head n, its
// key-value head n / (num_heads / num_kv_heads), and token t at position p of
// its sequence:
//   s[j] = q[t] . k[j] / sqrt(head_dim)   for j in [first, p],
//   first = document_starts[t], with a window max(that, p - window + 1),
//   lse[n, t] = ln(sum over j of exp(s[j])),
//   o[t, n] = sum over j of exp(s[j] - lse[n, t]) v[j].
//
// Works on tiles of queries and keys with a running maximum and sum (Milakov
// and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et
// al., "FlashAttention", 2022), so nothing of sequence x sequence size ever
// exists.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

inline constexpr int64_t kMaxAttentionHeadDim = 256;

// T = num_sequences * sequence_length tokens.
struct AttentionShape {
  int64_t num_sequences;    // Zero is allowed and does nothing.
  int64_t sequence_length;  // At least one.
  int64_t num_heads;        // A multiple of num_kv_heads.
  int64_t num_kv_heads;     // At least one.
  int64_t head_dim;         // In [1, kMaxAttentionHeadDim].
  int64_t window = 0;       // Keys that a query sees at most; 0: no limit.
};

struct AttentionForwardArgs {
  float* o;          // [T, num_heads * head_dim]
  float* lse;        // [num_heads, T]
  const float* qkv;  // [T, (num_heads + 2 num_kv_heads) head_dim]: query heads,
                     // key heads, value heads.
  // [T]: index within its sequence of the first token of token t's document; at
  // most its own.
  const int32_t* document_starts;
  AttentionShape shape;
};

// With p[j] = exp(s[j] - lse), dp[j] = d_o . v[j], delta = d_o . o:
//   ds[j] = p[j] (dp[j] - delta) / sqrt(head_dim),
//   d_q = sum over j of ds[j] k[j], d_k[j] = sum of ds[j] q, d_v[j] = sum of
//   p[j] d_o, the last two over all queries and heads that see j.
struct AttentionBackwardArgs {
  float* d_qkv;  // Packed like qkv; overwritten.
  float* delta;  // [num_heads, T]
  const float* qkv;
  const int32_t* document_starts;
  const float* o;    // [T, num_heads * head_dim]
  const float* lse;  // [num_heads, T]
  const float* d_o;  // [T, num_heads * head_dim]
  AttentionShape shape;
};

// Allocate nothing: tiles live on the stack, under 640 KiB a thread. Outputs
// alias no input. InvalidArgument names a bad shape, or the token whose
// document starts after it. Results do not depend on num_threads. The backward
// pass spreads over sequences x key-value heads, no further.
absl::Status AttentionForward(const AttentionForwardArgs& args,
                              int num_threads);
absl::Status AttentionBackward(const AttentionBackwardArgs& args,
                               int num_threads);

// The meaning of the kernels in plain loops. These functions allocate.
void AttentionForwardReference(const AttentionForwardArgs& args);
void AttentionBackwardReference(const AttentionBackwardArgs& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_H_
