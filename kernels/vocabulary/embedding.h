// Token embedding over a shard of the vocabulary: rows [vocab_begin,
// vocab_begin + vocab_rows). Tokens outside the shard read as zero rows and
// give no gradient, so that summing over all shards gives the whole lookup.
// Rows that are read, and gradients that are added, are multiplied by `scale`.

#ifndef MILLRACE_KERNELS_VOCABULARY_EMBEDDING_H_
#define MILLRACE_KERNELS_VOCABULARY_EMBEDDING_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

struct EmbeddingForwardArgs {
  float* x;               // [num_tokens, hidden]
  const int32_t* tokens;  // [num_tokens]
  const float* weight;    // [vocab_rows, hidden]
  int64_t num_tokens;     // Zero is allowed.
  int64_t hidden;         // At least one.
  int64_t vocab_begin;    // Not negative.
  int64_t vocab_rows;     // At least one.
  float scale = 1;
};

struct EmbeddingBackwardArgs {
  float* d_weight;  // [vocab_rows, hidden]
  const int32_t* tokens;
  const float* d_x;  // [num_tokens, hidden]
  int64_t num_tokens;
  int64_t hidden;
  int64_t vocab_begin;
  int64_t vocab_rows;
  bool accumulate;  // d_weight is added to, not overwritten.
  float scale = 1;
};

// InvalidArgument names a bad shape. A row's gradient is summed in token order,
// so results do not depend on num_threads.
absl::Status EmbeddingForward(const EmbeddingForwardArgs& args,
                              int num_threads);
absl::Status EmbeddingBackward(const EmbeddingBackwardArgs& args,
                               int num_threads);

// The meaning of the kernels in plain loops.
void EmbeddingForwardReference(const EmbeddingForwardArgs& args);
void EmbeddingBackwardReference(const EmbeddingBackwardArgs& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_VOCABULARY_EMBEDDING_H_
