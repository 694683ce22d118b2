// Shows people what the model sees of a job's data.

#ifndef MILLRACE_WORKER_DATA_SHOW_SAMPLES_H_
#define MILLRACE_WORKER_DATA_SHOW_SAMPLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "worker/data/batch_source.h"
#include "worker/data/tokenizer.h"

namespace millrace {

// One sequence of a batch.
struct Sample {
  std::vector<int32_t> tokens;
  // The index in the sequence at which each token's document begins.
  std::vector<int32_t> document_starts;
  // Whether the model is trained to predict each token. The first one of text,
  // which nothing predicts, is as the second. Empty: all are.
  std::vector<bool> trained;
  int64_t num_empty_places = 0;  // Behind the last sample of a sequence.
};

// The first `count` samples of a step, at most its global batch. Documents
// of samples (sample_batches.h) have their last token, which is a target alone.
absl::StatusOr<std::vector<Sample>> ReadSamples(const JobSpec& job,
                                                BatchSource* batches,
                                                int64_t step, int64_t count);

// The documents of a sample, at most `max_tokens` tokens of each. Lines begin
// with + where tokens are trained and with - where they are only seen. Without
// a tokenizer, as for indexed data, ids instead of text.
std::string DescribeSample(const Sample& sample, const Tokenizer* tokenizer,
                           int64_t max_tokens);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_SHOW_SAMPLES_H_
