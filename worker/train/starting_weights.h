// The weights of a Hugging Face folder that a job starts from (model.from).

#ifndef MILLRACE_WORKER_TRAIN_STARTING_WEIGHTS_H_
#define MILLRACE_WORKER_TRAIN_STARTING_WEIGHTS_H_

#include "absl/status/status.h"
#include "planner/job/job.h"
#include "worker/train/trainer.h"

namespace millrace {

// Whether the folder holds the model's weights, all of them and no others, by
// the headers of its files. Notes their fingerprint in the job. A job without a
// folder is left as it is. Errors are WeightFolder's, or InvalidArgument for a
// fingerprint other than the one that the job gives; all begin with the key.
absl::Status CheckStartingWeights(JobSpec& job);

// Fills the state of a trainer that has run no step from the folder; collective
// over the world. Does nothing for a job without a folder. FailedPrecondition
// if the folder cannot be read or holds other weights than were checked.
absl::Status LoadStartingWeights(const JobSpec& job, Trainer* trainer);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_STARTING_WEIGHTS_H_
