// Batches whose samples come from several sources by their weights.

#ifndef MILLRACE_WORKER_DATA_MIXED_BATCHES_H_
#define MILLRACE_WORKER_DATA_MIXED_BATCHES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/data/batch_source.h"
#include "worker/data/mixture.h"

namespace millrace {

struct MixedSource {
  std::string key;  // For errors.
  std::unique_ptr<SampleSource> samples;
  std::vector<PairSource*> pairs = {};  // BatchSource::PairSources().
};

// Sequence s of step k is number (k - 1) * global_batch + s of the mixture,
// whatever the layout. Validation is mixed alike, from the same place for every
// seed.
class MixedBatches : public BatchSource {
 public:
  // As many sources as the mixtures have.
  MixedBatches(std::vector<MixedSource> sources, Mixture training,
               Mixture validation, int64_t sequence_length);

  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override;
  absl::StatusOr<double> TrainedShare(DataSplit split, int64_t step,
                                      int64_t global_batch) override;
  std::vector<PairSource*> PairSources() override;

 private:
  const Mixture& MixtureOf(DataSplit split) const {
    return split == DataSplit::kTraining ? training_ : validation_;
  }

  const std::vector<MixedSource> sources_;
  const Mixture training_;
  const Mixture validation_;
  const int64_t sequence_length_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_MIXED_BATCHES_H_
