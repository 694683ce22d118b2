// The rows of cross_entropy_bf16.h between its matrix products: bf16 logits
// become their own gradient where they stand. Internal to that family.

#ifndef MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_BF16_ROWS_H_
#define MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_BF16_ROWS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// Logits of num_rows tokens against a shard of the vocabulary.
struct CrossEntropyRows {
  void* logits;            // bf16 [num_rows, row_stride], 16-byte aligned.
  const int32_t* targets;  // [num_rows]
  int64_t num_rows;        // Zero is allowed and does nothing.
  int64_t row_stride;      // Elements, a multiple of 8, at least vocab_rows.
  int64_t vocab_rows;
  int64_t vocab_begin;
  float softcap = 0;  // As in cross_entropy.h; logits are not yet capped.
};

// How a token's loss weighs.
struct CrossEntropyWeights {
  float token_scale;
  const float* device_token_scale;  // Not null: a further factor.
  float z_loss;
};

// Whole vocabulary: loss and gradient at once.
struct CrossEntropyFusedRowsArgs {
  CrossEntropyRows rows;
  CrossEntropyWeights weights;
  double* losses;  // [num_rows], not yet scaled.
};
absl::Status LaunchCrossEntropyFusedRows(const CrossEntropyFusedRowsArgs& args,
                                         cudaStream_t stream);

// The same where a cluster of blocks can keep a row in its shared memory;
// false, and nothing done, where it cannot. Without softcap.
absl::StatusOr<bool> LaunchCrossEntropyResidentRows(
    const CrossEntropyFusedRowsArgs& args, cudaStream_t stream);

// A shard's part: what it says of each token, then the gradient from what all
// shards said.
struct CrossEntropyRowStatsArgs {
  CrossEntropyRows rows;
  float* stats;  // [num_rows, kNumCrossEntropyStats]
};
absl::Status LaunchCrossEntropyRowStats(const CrossEntropyRowStatsArgs& args,
                                        cudaStream_t stream);

struct CrossEntropyRowGradientsArgs {
  CrossEntropyRows rows;
  CrossEntropyWeights weights;
  double* losses;          // [num_rows], not yet scaled.
  const float* all_stats;  // For these rows; shards are shard_stride apart.
  int64_t num_shards;
  int64_t shard_stride;                  // Elements.
  const float* token_weights = nullptr;  // [num_rows], factors of gradients.
};
absl::Status LaunchCrossEntropyRowGradients(
    const CrossEntropyRowGradientsArgs& args, cudaStream_t stream);

// loss += scale (*device_scale) sum of losses, always in the same order.
struct CrossEntropySumArgs {
  double* loss;
  const double* losses;
  int64_t num_tokens;
  double scale;
  const float* device_scale;  // May be null.
};
absl::Status LaunchCrossEntropySum(const CrossEntropySumArgs& args,
                                   cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_BF16_ROWS_H_
