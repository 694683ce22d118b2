#include "worker/data/open_samples.h"

#include <utility>

#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "worker/data/dataset.h"
#include "worker/data/sample_batches.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<SampleDataset>> OpenSamples(
    const JobSpec& job, const OpenSamplesOptions& options) {
  std::unique_ptr<SampleDataset> dataset;
  if (options.source.has_samples()) {
    ASSIGN_OR_RETURN(dataset,
                     SampleBatches::Open(
                         {.prefixes = options.prefixes,
                          .name = absl::StrJoin(options.source.files, ", "),
                          .vocab_size = job.model.vocab_size,
                          .sequence_length = job.model.sequence_length,
                          .drops_long_samples = job.data.long_samples == "drop",
                          .packs = job.data.packing,
                          .pairs = options.source.is_preference(),
                          .validation_fraction = options.validation_fraction,
                          .seed = options.seed}));
  } else {
    ASSIGN_OR_RETURN(
        dataset,
        PackedDataset::Open({.prefixes = options.prefixes,
                             .vocab_size = job.model.vocab_size,
                             .sequence_length = job.model.sequence_length,
                             .validation_fraction = options.validation_fraction,
                             .seed = options.seed,
                             .max_broken = job.data.broken_records}));
  }
  return dataset;
}

}  // namespace millrace
