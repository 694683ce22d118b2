// The batches of a trainer that another program drives: its own where it gives
// some, else the job's.

#ifndef MILLRACE_PYTHON_NATIVE_GIVEN_BATCHES_H_
#define MILLRACE_PYTHON_NATIVE_GIVEN_BATCHES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "python/native/trainer.h"
#include "worker/data/batch_source.h"

namespace millrace {

// Thread-safe: a GPU's host lane reads a batch while the next is given.
class GivenBatches : public BatchSource {
 public:
  // `job` is borrowed. `num_threads` prepare the job's own data, if a step asks
  // for it.
  GivenBatches(const JobSpec* job, int32_t num_threads)
      : job_(*job), num_threads_(num_threads) {}

  // Copies the batch of step `step`. Batches of earlier steps than
  // `oldest_step` are dropped. InvalidArgument, with the place, for a token, a
  // target or a document's start that cannot be.
  absl::Status Give(int64_t step, int64_t oldest_step,
                    const millrace_batch& batch);
  // Opens the job's own data, once. Errors are OpenBatches()'s.
  absl::Status OpenOwn();

  // Steps that were given nothing, and validation, read the job's own data.
  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override;
  absl::StatusOr<double> TrainedShare(DataSplit split, int64_t step,
                                      int64_t global_batch) override;
  bool ReadsAhead() const override { return false; }

 private:
  struct Batch {
    std::vector<int32_t> tokens;
    std::vector<int32_t> targets;
    std::vector<int32_t> document_starts;
    double trained_share;
  };

  absl::Status Check(const millrace_batch& batch) const;

  const JobSpec& job_;
  const int32_t num_threads_;
  std::mutex mutex_;
  std::map<int64_t, Batch> given_;  // By step.
  std::unique_ptr<BatchSource> own_;
};

}  // namespace millrace

#endif  // MILLRACE_PYTHON_NATIVE_GIVEN_BATCHES_H_
