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
  return loss;
}

absl::StatusOr<double> LogProbability(Trainer& trainer,
                                      EvaluationBatches& batches,
                                      const TokenSequence& sequence) {
  batches.SelectSequence(sequence);
  const absl::StatusOr<double> loss = trainer.RunValidation(1);
  batches.SelectValidation();
  RETURN_IF_ERROR(loss.status());
  return -*loss * static_cast<double>(sequence.num_scored());
}

}  // namespace millrace
