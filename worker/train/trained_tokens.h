// Divides by trained tokens. Programs compute the loss and the gradients of a
// mean over all tokens of the global batch, where tokens without a target count
// as zero. The mean over the trained tokens of the whole global batch is that
// times one factor, the same for all micro-batches and ranks, which the step
// applies once: to the loss, and to the gradients in kClipFactor. So no layout
// can average averages.

#ifndef MILLRACE_WORKER_TRAIN_TRAINED_TOKENS_H_
#define MILLRACE_WORKER_TRAIN_TRAINED_TOKENS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "planner/program/ops.h"
#include "worker/train/trainer.h"

namespace millrace {

// All tokens over trained ones; `trained_share` is BatchSource::TrainedShare()
// of a training step. InvalidArgument if no token is trained.
inline absl::StatusOr<double> TokenScaleOf(double trained_share, int64_t step,
                                           int64_t global_batch) {
  if (trained_share > 0) return 1 / trained_share;
  return absl::InvalidArgumentError(absl::StrCat(
      "0 trained tokens in the ", global_batch, " sequences of step ", step,
      ": the mean over trained tokens does not exist; raise "
      "training.global_batch, or train more of the data"));
}

// The mean of the losses of validation passes, `sum_of_means` over all their
// tokens.
inline absl::StatusOr<double> MeanOfPasses(double sum_of_means,
                                           double sum_of_trained_shares) {
  if (sum_of_trained_shares > 0) return sum_of_means / sum_of_trained_shares;
  return absl::InvalidArgumentError(
      "0 trained tokens in the validation passes: raise "
      "training.validation_steps or data.validation_fraction");
}

// Computes them from a step's summed scalars, in a layout that trains
// preferences.
inline PreferenceMetrics PreferenceMetricsOf(const double* scalars,
                                             double token_scale) {
  return {.chosen_reward = scalars[kChosenRewardScalar] * token_scale,
          .rejected_reward = scalars[kRejectedRewardScalar] * token_scale,
          .accuracy = scalars[kAccuracyScalar] * token_scale};
}

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_TRAINED_TOKENS_H_
