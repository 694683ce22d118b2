// Token embedding of a shard of the vocabulary on a GPU (the meaning stands in
// embedding.h): bf16 rows are gathered, gradients are added to fp32 rows.

#ifndef MILLRACE_KERNELS_VOCABULARY_EMBEDDING_BF16_H_
#define MILLRACE_KERNELS_VOCABULARY_EMBEDDING_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Rows are contiguous. Any address will do; where all tensors begin at
// multiples of 16 bytes and hidden is a multiple of eight, rows are read 16
// bytes at a time. Tokens outside [vocab_begin, vocab_begin + vocab_rows),
// negative ones among them, read as zero rows and give no gradient.
struct EmbeddingForwardBf16Args {
  void* x;                // [num_tokens, hidden] bf16
  const int32_t* tokens;  // [num_tokens]
  const void* weight;     // [vocab_rows, hidden] bf16
  int64_t num_tokens;     // Zero is allowed; less than 2^31.
  int64_t hidden;         // At least one.
  int64_t vocab_begin;    // Not negative.
  int64_t vocab_rows;     // At least one; less than 2^31.
  float scale = 1;        // A factor on all rows.
};

struct EmbeddingBackwardBf16Args {
  float* d_weight;        // [vocab_rows, hidden] fp32
  const int32_t* tokens;  // [num_tokens]
  const void* d_x;        // [num_tokens, hidden] bf16
  int64_t num_tokens;
  int64_t hidden;
  int64_t vocab_begin;
  int64_t vocab_rows;
  bool accumulate;  // d_weight is added to, not overwritten.
  // Tokens are sorted, and each row is summed in a fixed order: equal inputs
  // give equal bits, and a token that is everywhere costs no more than others.
  // Otherwise every token adds to its row when it comes, in any order.
  bool deterministic;
  // EmbeddingBackwardBf16WorkspaceBytes(), 16-byte aligned; read only where
  // deterministic.
  void* workspace;
  float scale = 1;
};

int64_t EmbeddingBackwardBf16WorkspaceBytes(int64_t num_tokens, int64_t hidden);

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape.
absl::Status LaunchEmbeddingForwardBf16(const EmbeddingForwardBf16Args& args,
                                        cudaStream_t stream);
absl::Status LaunchEmbeddingBackwardBf16(const EmbeddingBackwardBf16Args& args,
                                         cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_VOCABULARY_EMBEDDING_BF16_H_
