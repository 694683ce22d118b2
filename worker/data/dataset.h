// A PackedDataset cuts the token stream of a job into samples and says which
// sample is the k-th of a run: the BatchSource of every real training, alone or
// as one source of a mixture.
//
// All documents, one after the other, are one stream. Sample i holds the inputs
// [i * sequence, (i + 1) * sequence) and, one token further, their targets, so
// every token of the stream is predicted once an epoch. Samples cross document
// borders; attention does not, since document_starts marks the borders, taken
// from the index and not from token values.
//
// A validation_fraction of the samples, drawn from all over the stream (the
// same for every seed), is the validation split, read in one fixed order. The
// others are read in an order that is new in each epoch: a keyed permutation of
// (seed, epoch), computed for one position at a time.

#ifndef MILLRACE_WORKER_DATA_DATASET_H_
#define MILLRACE_WORKER_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/batch_source.h"
#include "worker/data/indexed_dataset.h"

namespace millrace {

// The image of `position` under a permutation of [0, size) that depends on
// `key` alone. Any size above zero; constant memory.
int64_t PermutedIndex(uint64_t key, int64_t size, int64_t position);

struct DatasetOptions {
  std::vector<std::string> prefixes;  // PreparedData::prefixes.
  int64_t vocab_size = 0;
  int64_t sequence_length = 0;
  // In [0, 1). Above zero at least one sample is kept for validation.
  double validation_fraction = 0;
  uint64_t seed = 0;
  // Samples with token ids outside the vocabulary that this dataset may leave
  // out. The next sample of the split that is whole takes the place of each, so
  // that the order of samples still follows from the files and the seed alone.
  int64_t max_broken = 0;
};

class PackedDataset : public SampleDataset {
 public:
  // InvalidArgument, with the counts, if there are too few tokens for one
  // sample of each split that is asked for.
  static absl::StatusOr<std::unique_ptr<PackedDataset>> Open(
      const DatasetOptions& options);

  // Sequence s of step k is number (k - 1) * global_batch + s of its split;
  // past the split's end the next epoch begins.
  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override;

  absl::Status ReadSample(DataSplit split, int64_t number,
                          const BatchPointers& out) override;

  absl::StatusOr<int64_t> NumTrained(DataSplit, int64_t) const override {
    return options_.sequence_length;
  }

  int64_t num_tokens() const { return file_begins_.back(); }
  int64_t num_samples(DataSplit split) const override;
  // Returns the stream's index of the `number`-th sample (from zero) of the
  // split.
  int64_t SampleIndex(DataSplit split, int64_t number) const;

 private:
  PackedDataset(const DatasetOptions& options,
                std::vector<IndexedDataset> files);
  absl::Status ReadSampleAt(int64_t position, const BatchPointers& out);
  absl::Status ReadTokens(int64_t position, int64_t count, int32_t* out) const;
  void FillDocumentStarts(int64_t position, int32_t* out) const;
  size_t FindFile(int64_t position) const;

  DatasetOptions options_;
  std::vector<IndexedDataset> files_;
  std::vector<int64_t> file_begins_;  // In the stream; one more than files.
  int64_t num_training_ = 0;
  int64_t num_validation_ = 0;
  std::set<int64_t> broken_;  // The samples left out, by index in the stream.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_DATASET_H_
