#include "worker/data/open_batches.h"

#include "worker/data/dataset.h"
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

}  // namespace millrace
