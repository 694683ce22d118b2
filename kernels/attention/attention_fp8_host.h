// Attention of e4m3 tensors on CPUs: what the kernels of attention_fp8.h and
// attention_fp8_quantize.h compute, with host pointers, causal and within
// documents. So trainings with attention in 8 bits run without a GPU.
//
// The e4m3 numbers and their scales have the bits of a GPU that reads the same
// numbers. Attention walks over the same blocks of keys from the last to the
// first, and rounds the same exponentials to e4m3: weighed by the block's value
// scale and relative to the largest score so far. It differs from a GPU in the
// last bits of exponentials (a GPU approximates one in four by a polynomial,
// within 1.9e-3, before it rounds) and in the sums of products, which are fp32
// here and have about 14 bits on tensor cores.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_HOST_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_HOST_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention/attention_fp8.h"

namespace millrace {

// T = num_sequences * sequence_length tokens; of the shape, `causal` and
// `document_starts` do not matter.
struct QuantizeQkvArgs {
  uint8_t* q;        // [T, num_heads * head_dim]
  uint8_t* k;        // [T, num_kv_heads * head_dim]
  uint8_t* v;        // Laid out as attention_fp8.h says.
  float* q_scale;    // [num_sequences, num_heads, NumFp8QueryBlocks()]
  float* k_scale;    // [num_sequences, num_kv_heads, NumFp8KeyBlocks()]
  float* v_scale;    // The same.
  const float* qkv;  // [T, (num_heads + 2 num_kv_heads) head_dim]: query heads,
                     // key heads, value heads.
  // The diagonal of the matrix that queries and keys are multiplied by, as in
  // attention_fp8_quantize.h.
  uint64_t signs[2];
  AttentionFp8Shape shape;
};

struct AttentionForwardFp8HostArgs {
  float* o;    // [T, num_heads * head_dim]
  float* lse;  // [num_heads, T], natural logarithm.
  const uint8_t *q, *k, *v;
  const float *q_scale, *k_scale, *v_scale;
  // [T]: index within its sequence of the first token of token t's document; at
  // most its own, and it never falls within a sequence.
  const int32_t* document_starts;
  AttentionFp8Shape shape;
};

// InvalidArgument names a bad shape, num_threads below one, or the token whose
// document starts where it cannot. Results do not depend on num_threads. Tiles
// lie on the stack, under 1 MiB a thread.
absl::Status QuantizeQkv(const QuantizeQkvArgs& args, int num_threads);
absl::Status AttentionForwardFp8(const AttentionForwardFp8HostArgs& args,
                                 int num_threads);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_HOST_H_
