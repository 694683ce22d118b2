// Cross entropy of given logits on a GPU, row by row: what stands between the
// matrix products of cross_entropy.h (what plain means stands in
// element_type.h). The sum of the losses is LaunchCrossEntropySum() of
// cross_entropy_bf16_rows.h; the loss from stats alone,
// LaunchCrossEntropyLoss() of cross_entropy_bf16.h: both are of either type.

#ifndef MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_ROWS_PLAIN_H_
#define MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_ROWS_PLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"
#include "kernels/vocabulary/cross_entropy.h"

namespace millrace {

// Device pointers; void is of the element type. Logits of num_rows tokens
// against rows [vocab_begin, vocab_begin + vocab_rows) of the vocabulary.
struct PlainLogits {
  void* logits;            // [num_rows, row_stride]
  const int32_t* targets;  // [num_rows]; negative: neither loss nor gradient.
  int64_t num_rows;        // Zero is allowed and does nothing; below 2^31.
  int64_t row_stride;      // Elements, at least vocab_rows.
  int64_t vocab_rows;      // At least one.
  int64_t vocab_begin;     // Not negative.
  float softcap = 0;       // As in cross_entropy.h.
};

// Computes the shard's statistics of each token.
struct PlainCrossEntropyStatsRowsArgs {
  PlainLogits logits;
  float* stats;  // [num_rows, kNumCrossEntropyStats]
};

// Logits, not yet capped, become their gradient where they stand.
struct PlainCrossEntropyGradientRowsArgs {
  PlainLogits logits;
  double* losses;  // [num_rows], not yet scaled: lse - target + z_loss lse^2.
  // The statistics of these rows by all shards, which lie shard_stride elements
  // apart. If null, this is the whole vocabulary (vocab_begin zero), and a
  // target beyond it makes the loss NaN.
  const float* all_stats;
  int64_t num_shards;
  int64_t shard_stride;
  double token_scale;
  double z_loss;                         // Not negative.
  const float* token_weights = nullptr;  // [num_rows], factors of gradients.
};

// Enqueue on `stream`, allocate nothing. InvalidArgument names a bad shape.
absl::Status LaunchPlainCrossEntropyStatsRows(
    const PlainCrossEntropyStatsRowsArgs& args, ElementType type,
    cudaStream_t stream);
absl::Status LaunchPlainCrossEntropyGradientRows(
    const PlainCrossEntropyGradientRowsArgs& args, ElementType type,
    cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_ROWS_PLAIN_H_
