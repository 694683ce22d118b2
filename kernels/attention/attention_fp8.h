// Attention of e4m3 tensors on Hopper GPUs, forward only, causal or full, with
// grouped queries (the math stands in attention.h):
//   s = q k^T / sqrt(head_dim), p = softmax(s), o = p v, lse = ln sum exp s.
//
// Queries, keys and values carry one fp32 scale for each block of tokens of a
// head: element = scale * e4m3 value. Blocks of queries and keys are the
// kernel's tiles: one factor a tile turns products into exponents of the
// softmax, and a block's value scale is one more summand in its exponents.
// attention_fp8_quantize.h makes these tensors from bf16.
//
// The method is that of Shah et al., "FlashAttention-3", 2024 (section 3.3);
// values arrive transposed already, so that no kernel has to turn them in
// shared memory.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Tokens that share a scale.
inline constexpr int64_t kFp8QueryBlock = 128;
inline constexpr int64_t kFp8KeyBlock = 192;

// [num_sequences, sequence_length, heads, head_dim] e4m3, head_dim contiguous;
// the address and all strides (elements) are multiples of 16.
struct Fp8Heads {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
  int64_t sequence_stride;
};

struct AttentionFp8Shape {
  int64_t num_sequences;    // Zero is allowed and does nothing.
  int64_t sequence_length;  // At least one.
  int64_t num_heads;        // A multiple of num_kv_heads.
  int64_t num_kv_heads;
  int64_t head_dim;  // 64 or 128.
  bool causal;
  // Not null, causal only: [num_sequences, sequence_length] on the device, the
  // index within its sequence of the first token of each token's document, at
  // which its keys begin. Starts never fall within a sequence. LSE is then
  // [num_heads, num_sequences, sequence_length].
  const int32_t* document_starts = nullptr;
};

// The last block of a sequence may be short; it has a scale as well.
inline constexpr int64_t NumFp8QueryBlocks(const AttentionFp8Shape& shape) {
  return (shape.sequence_length + kFp8QueryBlock - 1) / kFp8QueryBlock;
}
inline constexpr int64_t NumFp8KeyBlocks(const AttentionFp8Shape& shape) {
  return (shape.sequence_length + kFp8KeyBlock - 1) / kFp8KeyBlock;
}

// Values lie as the tensor cores read them:
//   [num_sequences, num_kv_heads, NumFp8KeyBlocks() * kFp8KeyBlock / 32,
//    head_dim / 8, 2, 8, 16] e4m3:
// for 32 tokens the head's elements in groups of eight, for each group the
// first and the last 16 tokens, for each element its 16 tokens in the order
// 0 1 8 9  2 3 10 11  4 5 12 13  6 7 14 15. Zeros stand after the last token.
// So no 8-bit matrix has to be turned on chip, and a row of exponentials is an
// operand of the second product as the first one's accumulator leaves it.
inline constexpr int Fp8TokenAt(int position) {
  return position % 4 / 2 * 8 + position / 4 * 2 + position % 2;
}
inline constexpr int64_t Fp8ValueBytes(const AttentionFp8Shape& shape) {
  return shape.num_sequences * shape.num_kv_heads * NumFp8KeyBlocks(shape) *
         kFp8KeyBlock * shape.head_dim;
}

struct AttentionForwardFp8Args {
  Bf16Heads o;
  // [num_sequences, num_heads, sequence_length], natural logarithm; with
  // document_starts, heads first.
  float* lse;
  Fp8Heads q, k;
  const void* v;         // Fp8ValueBytes(), address a multiple of 16.
  const float* q_scale;  // [num_sequences, num_heads, NumFp8QueryBlocks()]
  const float* k_scale;  // [num_sequences, num_kv_heads, NumFp8KeyBlocks()]
  // The same. Scales are in [2^-120, 2^120]; those of values also multiply the
  // exponentials before these become e4m3, so that a block with less than 2^-6
  // of the largest value scale of its head loses accuracy as if it had that
  // one.
  const float* v_scale;
  // Two integers, zero before the first launch; every launch leaves them zero.
  // Launches that may overlap need their own.
  int32_t* tile_counter;
  AttentionFp8Shape shape;
};

// Enqueues on `stream`, allocates nothing. Device pointers. InvalidArgument
// names the shape that cannot be, Unavailable a device that is not a Hopper.
//
// Exponentials are rounded to e4m3 (4 significant bits) and products summed
// with about 14 bits by the tensor cores: measured on one H200, o is off by
// 2.7e-2 of its norm from fp64 on the same e4m3 inputs, and shrinks by 1e-3
// over 16k tokens; LSE, summed in fp32, is off by less than 1e-3 where scores
// are of order one. Against fp64 on the bf16 inputs, rounding those included, o
// is off by 5e-2; for inputs with outliers by 8e-2, and with incoherent
// processing by 5e-2 again. Equal inputs give equal bits.
absl::Status LaunchAttentionForwardFp8(const AttentionForwardFp8Args& args,
                                       cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_FP8_H_
