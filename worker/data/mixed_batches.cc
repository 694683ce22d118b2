#include "worker/data/mixed_batches.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace millrace {

MixedBatches::MixedBatches(std::vector<MixedSource> sources, Mixture training,
                           Mixture validation, int64_t sequence_length)
    : sources_(std::move(sources)),
      training_(std::move(training)),
      validation_(std::move(validation)),
      sequence_length_(sequence_length) {}

absl::Status MixedBatches::Fill(const BatchRequest& request,
                                const BatchPointers& out) {
  CHECK(request.step >= 1) << request.step;
  CHECK(request.first_sequence_idx >= 0) << request.first_sequence_idx;
  CHECK(request.first_sequence_idx + request.num_sequences <=
        request.global_batch)
      << "sequences beyond the global batch";
  const Mixture& mixture =
      request.split == DataSplit::kTraining ? training_ : validation_;
  for (int64_t i = 0; i < request.num_sequences; ++i) {
    const Mixture::Pick pick =
        mixture.At((request.step - 1) * request.global_batch +
                   request.first_sequence_idx + i);
    const MixedSource& source = sources_[pick.source_idx];
    const absl::Status status = source.samples->ReadSample(
        request.split, pick.number, OneSequence(out, i, sequence_length_));
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(source.key, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
