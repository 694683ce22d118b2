#include "worker/data/open_batches.h"

#include "base/status_macros.h"
#include "worker/data/dataset.h"
#include "worker/data/prepare.h"
#include "worker/data/random_batches.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<BatchSource>> OpenBatches(
    const JobSpec& job, const std::vector<std::string>& prefixes) {
  if (job.data.synthetic) {
    return std::make_unique<RandomBatches>(
        RandomBatchesOptions{.vocab_size = job.model.vocab_size,
                             .sequence_length = job.model.sequence_length,
                             .seed = job.training.seed});
  }
  return PackedDataset::Open(
      {.prefixes = prefixes,
       .vocab_size = job.model.vocab_size,
       .sequence_length = job.model.sequence_length,
       .validation_fraction = job.data.validation_fraction,
       .seed = job.training.seed});
}

absl::StatusOr<std::unique_ptr<BatchSource>> PrepareAndOpenBatches(
    const JobSpec& job, int32_t num_threads) {
  ASSIGN_OR_RETURN(const PreparedData data,
                   PrepareData({.data = job.data,
                                .vocab_size = job.model.vocab_size,
                                .num_threads = num_threads}));
  return OpenBatches(job, data.prefixes);
}

}  // namespace millrace
