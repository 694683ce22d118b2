// The loss of pairs of answers to one prompt, a chosen and a rejected one, by
// direct preference optimization (Rafailov et al., 2023; label smoothing as in
// Mitchell, "A note on DPO with noisy preferences", 2023), from the statistics
// of cross_entropy.h:
//   log_probability(answer) = -(sum of its trained tokens' cross entropy),
//   reward(answer) = beta (log_probability - reference),
//   margin = reward(chosen) - reward(rejected),
//   loss = -(1 - smoothing) ln(sigmoid(margin))
//          - smoothing ln(sigmoid(-margin)).
// The loss depends on a token's logits through its cross entropy alone, so its
// gradient is the token's cross entropy gradient times
//   weight = beta ((1 - smoothing) sigmoid(-margin)
//                  - smoothing sigmoid(margin))
// for the chosen answer and the negative of that for the rejected one:
// CrossEntropyPlan::Gradient() takes these weights.
//
// An answer is a document of a sequence, and a pair is the document of its
// chosen answer followed by that of its rejected one. A trained token of no
// pair has its cross entropy as loss, and weight one.

#ifndef MILLRACE_KERNELS_VOCABULARY_PREFERENCE_H_
#define MILLRACE_KERNELS_VOCABULARY_PREFERENCE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

struct PreferenceLossArgs {
  float* weights;            // [num_tokens]; zero where nothing is trained.
  float* log_probabilities;  // [num_tokens]: where an answer begins, its own;
                             // zero elsewhere.
  // One element each, added to: scale times the sum over tokens of no pair and
  // pairs of the loss, and over pairs of the rewards and of one where the
  // margin is above zero.
  double* loss;
  double* chosen_reward;
  double* rejected_reward;
  double* accuracy;
  const int32_t* targets;  // [num_tokens]; negative: not trained.
  // [num_tokens], within their sequence: where the token's document and its
  // pair begin; of no pair: -1.
  const int32_t* document_starts;
  const int32_t* pair_starts;
  const float* references;  // [num_tokens]; the same over an answer.
  const float* all_stats;   // [num_shards, num_tokens, kNumCrossEntropyStats]
  int64_t num_shards;       // At least one.
  int64_t num_tokens;
  int64_t sequence_length;  // Divides num_tokens.
  double beta;
  double label_smoothing;  // In [0, 0.5).
  double scale;
};

// In plain loops, in double. InvalidArgument names the size that cannot be.
absl::Status PreferenceLoss(const PreferenceLossArgs& args);

// The same on a GPU: device pointers; enqueues on `stream`, allocates nothing.
// Sums are always in the same order.
absl::Status LaunchPreferenceLoss(const PreferenceLossArgs& args,
                                  cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_VOCABULARY_PREFERENCE_H_
