// Random tokens, for jobs that ask how fast a machine trains, not what it
// learns: a pure function of (seed, split, step, sequence), no files.

#ifndef MILLRACE_WORKER_DATA_RANDOM_BATCHES_H_
#define MILLRACE_WORKER_DATA_RANDOM_BATCHES_H_

#include <cstdint>

#include "worker/data/batch_source.h"

namespace millrace {

struct RandomBatchesOptions {
  int64_t vocab_size;
  int64_t sequence_length;
  uint64_t seed;
};

// Tokens are uniform in [0, vocab_size), targets the tokens that follow, and
// every sequence is one document.
class RandomBatches : public BatchSource {
 public:
  explicit RandomBatches(const RandomBatchesOptions& options)
      : options_(options) {}

  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override;

 private:
  const RandomBatchesOptions options_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_RANDOM_BATCHES_H_
