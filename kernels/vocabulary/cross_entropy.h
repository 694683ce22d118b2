// Output projection and cross entropy loss in one, over chunks of tokens, so
// that the logits of all tokens never exist at once:
//   logits[t, v] = cap(hidden[t] . weight[v]),
//   cap(x) = softcap tanh(x / softcap), without a softcap x,
//   lse[t] = ln(sum over v of exp(logits[t, v])),
//   loss[t] = lse[t] - logits[t, targets[t]] + z_loss lse[t]^2,
//   d_logits[t, v] = token_scale ((1 + 2 z_loss lse[t]) softmax(logits[t])[v] -
//                                 [v == targets[t]]) cap'[t, v],
//   cap'[t, v] = 1 - (logits[t, v] / softcap)^2, without a softcap 1,
//   d_hidden = d_logits weight, d_weight (+)= transpose(d_logits) hidden.
// A token whose target is negative has no loss and no gradient.
//
// The vocabulary may be sharded: this rank then holds rows [vocab_begin,
// vocab_begin + vocab_rows) of weight, Stats() says of each token what the
// other ranks must know, and Gradient() takes what all ranks said.

#ifndef MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_H_
#define MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

struct CrossEntropyOptions {
  int64_t num_tokens;  // At least one, like all sizes here.
  int64_t hidden;
  int64_t vocab_rows;
  int64_t vocab_begin = 0;  // Not negative.
  int64_t chunk_tokens;     // The last chunk may be smaller.
  double token_scale = 1;   // On each token's loss and gradient.
  double loss_share = 1;    // On the loss sum, in addition.
  bool accumulate = false;  // d_weight is added to, not overwritten.
  // Not negative. Above zero it keeps lse near zero (Chowdhery et al., "PaLM",
  // 2022, section 5).
  double z_loss = 0;
  double softcap = 0;  // Bound of the logits; 0: none.
};

// A rank's statistics of a token over its shard: [kNumCrossEntropyStats]
// floats.
enum CrossEntropyStat : int {
  kMaximumStat = 0,          // Over the shard's logits.
  kSumExponentialsStat = 1,  // Sum of exp(logit - maximum).
  kTargetLogitStat = 2,      // Zero if the target is elsewhere.
  kNumCrossEntropyStats = 3,
};

struct LinearCrossEntropyArgs {
  float* d_hidden;         // [num_tokens, hidden]
  float* d_weight;         // [vocab_rows, hidden]
  double* loss;            // One element, added to: token_scale loss_share sum.
  const float* hidden;     // [num_tokens, hidden]
  const float* weight;     // [vocab_rows, hidden]
  const int32_t* targets;  // [num_tokens]; below vocab_rows.
  float* logits;           // Scratch, [chunk_tokens, vocab_rows].
  void* workspace;         // Scratch, workspace_bytes() aligned to 64.
};

struct CrossEntropyStatsArgs {
  float* stats;  // [num_tokens, kNumCrossEntropyStats]
  const float* hidden;
  const float* weight;
  const int32_t* targets;
  float* logits;
  void* workspace;
};

struct CrossEntropyGradientArgs {
  float* d_hidden;  // This shard's part of the sum over shards.
  float* d_weight;
  double* loss;
  const float* hidden;
  const float* weight;
  const int32_t* targets;
  const float* all_stats;  // [num_shards, num_tokens, kNumCrossEntropyStats]
  int64_t num_shards;      // At least one.
  // [num_tokens]: factors of the tokens' gradients. Null: one each. With them
  // `loss` is not touched: whoever made them knows the loss.
  const float* token_weights = nullptr;
  float* logits;
  void* workspace;
};

// One shape made ready at set-up; runs allocate nothing of their own.
// Move-only; one run at a time. Results do not depend on what ran before.
class CrossEntropyPlan {
 public:
  // InvalidArgument names the size that cannot be.
  static absl::StatusOr<CrossEntropyPlan> Create(
      const CrossEntropyOptions& options, int num_threads);
  CrossEntropyPlan(CrossEntropyPlan&&) noexcept;
  CrossEntropyPlan& operator=(CrossEntropyPlan&&) noexcept;
  ~CrossEntropyPlan();

  int64_t workspace_bytes() const;

  // Forward and backward in one pass; needs the whole vocabulary (vocab_begin
  // zero and every target below vocab_rows, else InvalidArgument).
  absl::Status LinearCrossEntropy(const LinearCrossEntropyArgs& args);
  absl::Status Stats(const CrossEntropyStatsArgs& args);
  absl::Status Gradient(const CrossEntropyGradientArgs& args);

 private:
  struct Impl;
  explicit CrossEntropyPlan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The loss alone, from all ranks' stats.
struct CrossEntropyLossArgs {
  double* loss;  // Added to.
  const int32_t* targets;
  const float* all_stats;
  int64_t num_shards;
  int64_t num_tokens;
  double token_scale;
  double loss_share;
  double z_loss = 0;
};
absl::Status CrossEntropyLoss(const CrossEntropyLossArgs& args);

// The meaning of the kernels in plain loops. `logits` and `workspace` are not
// touched.
void LinearCrossEntropyReference(const CrossEntropyOptions& options,
                                 const LinearCrossEntropyArgs& args);
void CrossEntropyStatsReference(const CrossEntropyOptions& options,
                                const CrossEntropyStatsArgs& args);
void CrossEntropyGradientReference(const CrossEntropyOptions& options,
                                   const CrossEntropyGradientArgs& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_H_
