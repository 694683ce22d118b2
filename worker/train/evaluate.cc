#include "worker/train/evaluate.h"

#include <cstdint>

#include "base/status_macros.h"

namespace millrace {

absl::StatusOr<double> EvaluateSet(Trainer& trainer, const Layout& layout,
                                   EvaluationBatches& batches, size_t set_idx) {
  const int64_t of_pass = int64_t{layout.micro_batch} * layout.data;
  const int64_t num_sequences = batches.num_sequences(set_idx);
  const int64_t num_passes = (num_sequences + of_pass - 1) / of_pass;
  batches.Select(set_idx);
  const absl::StatusOr<double> loss = trainer.RunValidation(num_passes);
  batches.SelectValidation();
  RETURN_IF_ERROR(loss.status());
  // The passes' mean is over all their tokens, also those without a target.
  return *loss * static_cast<double>(num_passes * of_pass) /
         static_cast<double>(num_sequences);
}

absl::StatusOr<double> LogProbability(Trainer& trainer, const Layout& layout,
                                      EvaluationBatches& batches,
                                      int64_t sequence_length,
                                      const TokenSequence& sequence) {
  batches.SelectSequence(sequence);
  const absl::StatusOr<double> loss = trainer.RunValidation(1);
  batches.SelectValidation();
  RETURN_IF_ERROR(loss.status());
  // A mean over all tokens of the pass, also those without a target.
  return -*loss * static_cast<double>(int64_t{layout.micro_batch} *
                                      layout.data * sequence_length);
}

}  // namespace millrace
