// Token embedding of a shard of the vocabulary on a GPU, forward and backward
// (the meaning stands in embedding.h, what plain means in element_type.h).

#ifndef MILLRACE_KERNELS_VOCABULARY_EMBEDDING_PLAIN_H_
#define MILLRACE_KERNELS_VOCABULARY_EMBEDDING_PLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Device pointers; void is of the element type. Tokens outside [vocab_begin,
// vocab_begin + vocab_rows) read as zero rows and give no gradient.
struct PlainEmbeddingForwardArgs {
  void* x;                // [num_tokens, hidden]
  const int32_t* tokens;  // [num_tokens]
  const void* weight;     // [vocab_rows, hidden]
  int64_t num_tokens;     // Zero is allowed; below 2^31.
  int64_t hidden;         // At least one.
  int64_t vocab_begin;    // Not negative.
  int64_t vocab_rows;     // At least one; below 2^31.
  float scale = 1;        // A factor on all rows.
};

struct PlainEmbeddingBackwardArgs {
  float* d_weight;        // [vocab_rows, hidden]
  const int32_t* tokens;  // [num_tokens]
  const void* d_x;        // [num_tokens, hidden]
  // PlainEmbeddingBackwardWorkspaceBytes(), 16-byte aligned.
  void* workspace;
  int64_t num_tokens;
  int64_t hidden;
  int64_t vocab_begin;
  int64_t vocab_rows;
  bool accumulate;  // d_weight is added to, not overwritten.
  float scale = 1;
};

// For the sorted tokens.
int64_t PlainEmbeddingBackwardWorkspaceBytes(int64_t num_tokens);

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape. A
// row's gradient is summed in token order, so that a token that is everywhere
// takes as long as there are tokens.
absl::Status LaunchPlainEmbeddingForward(const PlainEmbeddingForwardArgs& args,
                                         ElementType type, cudaStream_t stream);
absl::Status LaunchPlainEmbeddingBackward(
    const PlainEmbeddingBackwardArgs& args, ElementType type,
    cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_VOCABULARY_EMBEDDING_PLAIN_H_
