// The reference of preference training: the log-probabilities of all answers
// under the weights that training starts from. Validation passes compute them
// once, before the first step, so training holds no second copy of the weights.
// They are kept beside the converted data, for restarts and later runs.

#ifndef MILLRACE_WORKER_TRAIN_REFERENCES_H_
#define MILLRACE_WORKER_TRAIN_REFERENCES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "worker/data/evaluation_batches.h"
#include "worker/train/trainer.h"

namespace millrace {

// The file of a source's references: beside its first file, named by a hash of
// all that they depend on (starting weights, by the fingerprint and the sizes
// and times of their files; precision, files, length of sequences).
std::string ReferencePath(const JobSpec& job, const PairSource& pairs);

// Writes and reads it; `writer` tells apart those who write it at once.
// NotFound if there is none, DataLoss if it is not whole.
absl::Status WriteReferences(const std::string& path, int32_t writer,
                             const std::vector<float>& references);
absl::StatusOr<std::vector<float>> ReadReferences(const std::string& path,
                                                  int64_t num_pairs);

// Gives every source of pairs in `batches`, the trainer's, its references: from
// its file, or where some rank finds none, from passes over all pairs, which
// write the file. Collective over the world; before the first step of a trainer
// whose state may be anything. Returns whether the trainer has the starting
// weights now, which passes need.
absl::StatusOr<bool> PrepareReferences(const JobSpec& job, const Layout& layout,
                                       Rank rank, Trainer& trainer,
                                       EvaluationBatches& batches);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_REFERENCES_H_
