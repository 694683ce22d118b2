// Attention of bf16 tensors on GPUs of compute capability 8.0 and above,
// forward and backward, causal or full, with grouped queries (the math stands
// in attention.h):
//   s = q k^T / sqrt(head_dim), p = softmax(s), o = p v, lse = ln sum exp s.
//
// The forward kernel has one producer and two or three consumer warpgroups that
// take turns on the tensor cores (Shah et al., "FlashAttention-3", 2024), from
// tile to tile without a pause; few tiles share out their keys instead. The
// backward kernel keeps a block of keys and values and walks over the queries,
// adding the query gradient in fp32 through the copy engine. So on Hopper;
// elsewhere both are loops over mma.sync (Dao, "FlashAttention-2", 2023).

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// [num_sequences, sequence_length, heads, head_dim] bf16 anywhere in memory, so
// that a packed projection is read in place. head_dim is contiguous; the
// address and all strides (elements) are multiples of 8.
struct Bf16Heads {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
  int64_t sequence_stride;
};

struct AttentionBf16Shape {
  int64_t num_sequences;    // Zero is allowed and does nothing.
  int64_t sequence_length;  // At least one; of packed documents the longest.
  int64_t num_heads;        // A multiple of num_kv_heads.
  int64_t num_kv_heads;
  int64_t head_dim;  // 64, 96, 128 or 256.
  bool causal;
  // Not zero: query i sees key j only if i - j < window (and, unless causal,
  // j - i < window).
  int64_t window = 0;
  // Not null: documents of unlike lengths, packed. Document d is tokens
  // document_offsets[d] up to document_offsets[d + 1] of total_tokens; on the
  // device, [num_sequences + 1], ascending. No sequence_stride is then read and
  // LSE is [num_heads, total_tokens]. A value that is not finite may reach the
  // document before its own.
  const int32_t* document_offsets = nullptr;
  int64_t total_tokens = 0;
  // Not zero: scores s become softcap tanh(s / softcap).
  float softcap = 0;
};

struct AttentionForwardBf16Args {
  Bf16Heads o;
  float*
      lse;  // [num_sequences, num_heads, sequence_length], natural logarithm.
  Bf16Heads q, k, v;
  // Two integers, zero before the first launch; every launch leaves them zero.
  // Launches that may overlap need their own.
  int32_t* tile_counter;
  AttentionBf16Shape shape;
  // Not null: raised to the largest |o|. Hopper's kernel for many tiles finds
  // it on the way. Other kernels leave it to a second pass over o, whose heads
  // then lie side by side (head_stride is head_dim).
  float* amax = nullptr;
};

struct AttentionBackwardBf16Args {
  Bf16Heads d_q, d_k, d_v;
  Bf16Heads q, k, v, o, d_o;
  const float* lse;
  void* workspace;  // AttentionBackwardBf16WorkspaceBytes(), 16-byte aligned.
  AttentionBf16Shape shape;
  bool deterministic = false;  // Equal bits of d_q too, at some cost in time.
};

int64_t AttentionBackwardBf16WorkspaceBytes(const AttentionBf16Shape& shape);

// Enqueue on `stream`, allocate nothing. Device pointers. InvalidArgument names
// the shape that cannot be, Unavailable a device below 8.0.
//
// The forward pass gives equal bits for equal inputs, and so do d_k and d_v;
// d_q is a sum of fp32 terms whose order varies from run to run unless
// `deterministic`.
absl::Status LaunchAttentionForwardBf16(const AttentionForwardBf16Args& args,
                                        cudaStream_t stream);
absl::Status LaunchAttentionBackwardBf16(const AttentionBackwardBf16Args& args,
                                         cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_H_
