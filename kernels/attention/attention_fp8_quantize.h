// From bf16 queries, keys and values to the e4m3 tensors of attention_fp8.h,
// every element read once: rotary embedding (rope.h), incoherent processing,
// scales, rounding, and the layout that the tensor cores read values in.
//
// Incoherent processing (Chee et al., "QuIP", 2023; for attention Shah et al.,
// "FlashAttention-3", 2024) multiplies queries and keys by the same orthogonal
// matrix H D / sqrt(head_dim), with H the Hadamard matrix in Sylvester's order
// (element (i, j) is -1 to the number of ones in i & j) and D a diagonal of
// signs. Scores stay as they are, while an outlier, which would coarsen the
// scale of its whole block, spreads over all elements of its row.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_QUANTIZE_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_QUANTIZE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_fp8.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// The largest e4m3 value, and the largest magnitude of a block that is taken as
// smaller than it is: a block of smaller ones gets the scale of this.
inline constexpr float kFp8Largest = 448.0f;
inline constexpr float kFp8LeastMagnitude = 1e-20f;

// Signs for QuantizeQkvFp8Args, drawn once at random.
inline constexpr uint64_t kFp8Signs[2] = {0x9D3C5A1E7B48F26Du,
                                          0x41E8B7D05C92A6F3u};

struct QuantizeQkvFp8Args {
  Fp8Heads q, k;
  void* v;         // Laid out as attention_fp8.h says.
  float* q_scale;  // [num_sequences, num_heads, NumFp8QueryBlocks()]
  float* k_scale;  // [num_sequences, num_kv_heads, NumFp8KeyBlocks()]
  float* v_scale;  // The same.
  Bf16Heads q_in, k_in, v_in;  // Parts of one packed projection, or apart.
  // From FillRopeTable() for sequence_length and head_dim; null: no rotation.
  const float* rope_table;
  bool hadamard;
  // With hadamard: bit i of the 128 set makes element i of a head change its
  // sign before it is multiplied by H. Draw them at random, once.
  uint64_t signs[2];
  AttentionFp8Shape shape;  // `causal` does not matter.
};

// Enqueues on `stream`, allocates nothing. Device pointers; outputs do not
// overlap inputs. Rotation and H D are computed in fp32; a scale is the largest
// magnitude of its block over 448, and elements are rounded to nearest even.
// InvalidArgument names a bad shape.
absl::Status LaunchQuantizeQkvFp8(const QuantizeQkvFp8Args& args,
                                  cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_QUANTIZE_H_
