// The loss of a held-out set.

#ifndef MILLRACE_WORKER_TRAIN_EVALUATE_H_
#define MILLRACE_WORKER_TRAIN_EVALUATE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/layout/layout.h"
#include "worker/data/evaluation_batches.h"
#include "worker/train/trainer.h"

namespace millrace {

// Returns the mean loss over all tokens of a set, nats per token. Collective:
// all ranks of `layout` ask for the same set. `batches` are the trainer's.
absl::StatusOr<double> EvaluateSet(Trainer& trainer, const Layout& layout,
                                   EvaluationBatches& batches, size_t set_idx);

// Returns the sum of the log-probabilities of the tokens after the sequence's
// context. Collective in the same way.
absl::StatusOr<double> LogProbability(Trainer& trainer,
                                      EvaluationBatches& batches,
                                      const TokenSequence& sequence);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_EVALUATE_H_
