#include "worker/data/mixed_batches.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace millrace {
namespace {

absl::Status InSource(const MixedSource& source, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(source.key, ": ", status.message()));
}

}  // namespace

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
  for (int64_t i = 0; i < request.num_sequences; ++i) {
    const Mixture::Pick pick =
        MixtureOf(request.split)
            .At((request.step - 1) * request.global_batch +
                request.first_sequence_idx + i);
    const MixedSource& source = sources_[pick.source_idx];
    const absl::Status status = source.samples->ReadSample(
        request.split, pick.number, OneSequence(out, i, sequence_length_));
    if (!status.ok()) return InSource(source, status);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> MixedBatches::TrainedShare(DataSplit split, int64_t step,
                                                  int64_t global_batch) {
  int64_t num_trained = 0;
  for (int64_t i = 0; i < global_batch; ++i) {
    const Mixture::Pick pick =
        MixtureOf(split).At((step - 1) * global_batch + i);
    const MixedSource& source = sources_[pick.source_idx];
    const absl::StatusOr<int64_t> of_sample =
        source.samples->NumTrained(split, pick.number);
    if (!of_sample.ok()) return InSource(source, of_sample.status());
    num_trained += *of_sample;
  }
  return static_cast<double>(num_trained) /
         static_cast<double>(global_batch * sequence_length_);
}

std::vector<PairSource*> MixedBatches::PairSources() {
  std::vector<PairSource*> pairs;
  for (const MixedSource& source : sources_) {
    pairs.insert(pairs.end(), source.pairs.begin(), source.pairs.end());
  }
  return pairs;
}

}  // namespace millrace
