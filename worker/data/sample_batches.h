// Samples with trained and untrained tokens, as instruction tuning has them:
// their files, and the BatchSource over them.
//
// A sample of n tokens fills n - 1 places of a sequence: its tokens but the
// last, each with the next as target, or -1 where that one is not trained.
// Several samples share a sequence. Each is a document of its own, so none
// attends to another, and the places behind the last are a document that trains
// nothing.

#ifndef MILLRACE_WORKER_DATA_SAMPLE_BATCHES_H_
#define MILLRACE_WORKER_DATA_SAMPLE_BATCHES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/batch_source.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/packing.h"

namespace millrace {

// The prefix of the files that say which tokens of PREFIX are trained.
std::string TrainedPrefix(const std::string& prefix);

// Writes PREFIX.bin and .idx, a document a sample, and beside them
// PREFIX.trained.bin and .idx: a byte a token, one where it is trained. The
// tokens' index is renamed into place last.
class SampleWriter {
 public:
  static absl::StatusOr<SampleWriter> Create(const std::string& prefix,
                                             int64_t vocab_size);
  // As many of `trained` as tokens; at least one.
  absl::Status Add(absl::Span<const int32_t> tokens,
                   absl::Span<const uint8_t> trained);
  absl::Status Finish();

 private:
  SampleWriter(IndexedDatasetWriter tokens, IndexedDatasetWriter trained)
      : tokens_(std::move(tokens)), trained_(std::move(trained)) {}

  IndexedDatasetWriter tokens_;
  IndexedDatasetWriter trained_;
  std::vector<int32_t> scratch_;
};

struct SampleBatchesOptions {
  std::vector<std::string> prefixes;  // SampleWriter's.
  std::string name;                   // The data, for errors.
  int64_t vocab_size = 0;
  int64_t sequence_length = 0;
  // Samples longer than a sequence: their begin is kept, or they are left out.
  bool drops_long_samples = false;
  bool packs = true;  // False: one sample a sequence.
  // Each two documents are the answers of a pair, the chosen one first: one
  // sample, which is left out if it is too long. Both must have trained tokens.
  bool pairs = false;
  // In [0, 1): share of samples, the same for every seed. Above zero at least
  // one is kept for validation.
  double validation_fraction = 0;
  uint64_t seed = 0;
};

// Counts of what became of the samples.
struct SampleCounts {
  int64_t num_samples = 0;  // In the files.
  int64_t num_shortened = 0;
  int64_t num_dropped_long = 0;
  int64_t num_untrained = 0;  // Left out: no token of them is trained.
  int64_t num_used = 0;
  int64_t num_sequences = 0;       // They fill these,
  int64_t num_tokens = 0;          //   so many places of them
  int64_t num_trained_tokens = 0;  //   with so many targets.
  // The share of the places of all sequences.
  double fill_rate = 0;
};
// "1,024 samples in 96 sequences, 99.1 % filled, 41 % of tokens trained; 3
// shortened to the sequence, ..."
std::string DescribeSamples(const SampleCounts& counts);

class SampleBatches : public SampleDataset, public PairSource {
 public:
  // InvalidArgument: "0 trained tokens in N samples of NAME", or too few
  // samples for both splits. DataLoss if the files do not fit each other.
  static absl::StatusOr<std::unique_ptr<SampleBatches>> Open(
      const SampleBatchesOptions& options);

  // Sequence s of step k is number (k - 1) * global_batch + s of its split,
  // whose sequences come in a new order in each epoch.
  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override;
  absl::StatusOr<double> TrainedShare(DataSplit split, int64_t step,
                                      int64_t global_batch) override;

  // As a source of a mixture its samples are whole sequences.
  int64_t num_samples(DataSplit split) const override {
    return static_cast<int64_t>(SplitOf(split).size());
  }
  absl::Status ReadSample(DataSplit split, int64_t number,
                          const BatchPointers& out) override;
  absl::StatusOr<int64_t> NumTrained(DataSplit split,
                                     int64_t number) const override;

  std::string Describe() const override { return DescribeSamples(counts_); }
  const SampleCounts& counts() const { return counts_; }

  // Itself where samples are pairs, else none.
  std::vector<PairSource*> PairSources() override {
    if (!options_.pairs) return {};
    return {this};
  }
  const std::vector<std::string>& pair_prefixes() const override {
    return options_.prefixes;
  }
  int64_t num_pairs() const override { return num_pairs_; }
  int64_t num_pair_sequences() const override {
    return static_cast<int64_t>(training_.size() + validation_.size());
  }
  absl::Status ReadPairs(int64_t number, const BatchPointers& out) override {
    return FillRow(PairRow(number), out);
  }
  std::vector<Place> PlacesOf(int64_t number) const override;
  void SetReferences(std::vector<float> references) override;

 private:
  struct Sample {
    size_t file_idx;
    int64_t begin;              // In the file.
    int64_t length;             // Places that it fills.
    int64_t num_trained;        // One of a pair.
    int64_t chosen_length = 0;  // Only for pairs: places of the first answer.
    int64_t pair_idx = -1;      // Only for pairs: the number in all files.
  };
  // A sequence of a split.
  struct Row {
    std::vector<Sample> samples;
    int64_t num_trained = 0;
  };

  explicit SampleBatches(const SampleBatchesOptions& options)
      : options_(options) {}
  absl::Status ReadFiles(std::vector<Sample>* samples);
  absl::Status AddSample(size_t file_idx, int64_t document_idx,
                         std::vector<Sample>* samples);
  absl::Status AddPair(size_t file_idx, int64_t document_idx,
                       std::vector<Sample>* samples);
  // Counts the trained ones of the document's tokens but the first, in `length`
  // places.
  absl::StatusOr<int64_t> CountTrained(size_t file_idx, int64_t begin,
                                       int64_t length);
  absl::Status CheckBegins(size_t file_idx, int64_t document_idx) const;
  std::vector<Row> Pack(const std::vector<Sample>& samples) const;
  const std::vector<Row>& SplitOf(DataSplit split) const {
    return split == DataSplit::kTraining ? training_ : validation_;
  }
  absl::StatusOr<const Row*> RowOf(DataSplit split, int64_t number) const;
  absl::Status FillRow(const Row& row, const BatchPointers& out);
  // One document, at place `at`.
  absl::Status FillDocument(size_t file_idx, int64_t begin, int64_t length,
                            int64_t at, const BatchPointers& out);
  absl::Status FillSample(const Sample& sample, int64_t at,
                          const BatchPointers& out);
  const Row& PairRow(int64_t number) const {
    const auto num_training = static_cast<int64_t>(training_.size());
    return number < num_training
               ? training_[static_cast<size_t>(number)]
               : validation_[static_cast<size_t>(number - num_training)];
  }

  const SampleBatchesOptions options_;
  std::vector<IndexedDataset> tokens_;
  std::vector<IndexedDataset> trained_;
  std::vector<Row> training_;
  std::vector<Row> validation_;
  SampleCounts counts_;
  int64_t num_pairs_ = 0;
  std::vector<float> references_;  // [num_pairs_, 2]
  std::vector<int32_t> tokens_scratch_;
  std::vector<int32_t> trained_scratch_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_SAMPLE_BATCHES_H_
