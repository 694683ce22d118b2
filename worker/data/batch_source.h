// The source of a rank's micro-batches. The sequence of samples depends only on
// (seed, step), never on the layout, the rank or restarts.

#ifndef MILLRACE_WORKER_DATA_BATCH_SOURCE_H_
#define MILLRACE_WORKER_DATA_BATCH_SOURCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/layout/layout.h"

namespace millrace {

enum class DataSplit { kTraining, kValidation };

// Sequence `sequence_idx` of a global batch of step `step` is the same for
// every layout: data replica d, micro-batch m hold sequences
//   (first_microbatch_of(d) + m) * micro_batch + [0, micro_batch)
// with Layout::first_microbatch_of().
struct BatchRequest {
  DataSplit split;
  int64_t step = 0;            // The first training step is 1.
  int64_t global_batch;        // Sequences of the step.
  int64_t first_sequence_idx;  // In [0, global_batch).
  int64_t num_sequences;
};

// The request of a micro-batch without its step. A validation pass reads one
// micro-batch a data replica.
inline BatchRequest RequestOf(const Layout& layout, DataSplit split,
                              int32_t data_idx, int64_t microbatch_idx) {
  const bool trains = split == DataSplit::kTraining;
  const int64_t first =
      trains ? layout.first_microbatch_of(data_idx) : data_idx;
  return {.split = split,
          .global_batch = trains ? layout.global_batch()
                                 : int64_t{layout.micro_batch} * layout.data,
          .first_sequence_idx = (first + microbatch_idx) * layout.micro_batch,
          .num_sequences = layout.micro_batch};
}

// Each [num_sequences, sequence_length]; see OpKind::kLoadBatch. A token whose
// target is negative is not trained: it has no loss and no gradient.
// Where preferences are trained, pair_starts holds -1 and references zero when
// a source is asked, and one without pairs leaves them so; else both are null.
struct BatchPointers {
  int32_t* tokens;
  int32_t* targets;
  int32_t* document_starts;
  int32_t* pair_starts = nullptr;
  float* references = nullptr;
};

// The `sequence_idx`-th sequence of a batch.
inline BatchPointers OneSequence(const BatchPointers& batch,
                                 int64_t sequence_idx, int64_t length) {
  const int64_t at = sequence_idx * length;
  const bool has_pairs = batch.pair_starts != nullptr;
  return {.tokens = batch.tokens + at,
          .targets = batch.targets + at,
          .document_starts = batch.document_starts + at,
          .pair_starts = has_pairs ? batch.pair_starts + at : nullptr,
          .references = has_pairs ? batch.references + at : nullptr};
}

// The samples of one source of data, by number. A mixture asks for them.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual int64_t num_samples(DataSplit split) const = 0;
  // Fills one sequence of `out` with the `number`-th sample, from zero; past
  // the split's end the next epoch begins. Allocates nothing. Errors as of
  // BatchSource::Fill().
  virtual absl::Status ReadSample(DataSplit split, int64_t number,
                                  const BatchPointers& out) = 0;
  // How many of its targets are trained.
  virtual absl::StatusOr<int64_t> NumTrained(DataSplit split,
                                             int64_t number) const = 0;
};

// Pairs of a chosen and a rejected answer, and what the reference says of them:
// the log-probabilities of their answers under the weights that training starts
// from (worker/train/references.h).
class PairSource {
 public:
  virtual ~PairSource() = default;
  // Where a pair's answers begin in a sequence.
  struct Place {
    int64_t pair_idx;
    int64_t chosen_begin;
    int64_t rejected_begin;
  };

  // The files that hold the pairs, without what makes them train: equal
  // prefixes hold equal pairs. Never empty.
  virtual const std::vector<std::string>& pair_prefixes() const = 0;
  virtual int64_t num_pairs() const = 0;
  // Sequences that hold each pair once, in an order of their own.
  virtual int64_t num_pair_sequences() const = 0;
  // Fills one sequence of `out` with the `number`-th of them.
  virtual absl::Status ReadPairs(int64_t number, const BatchPointers& out) = 0;
  virtual std::vector<Place> PlacesOf(int64_t number) const = 0;
  // [num_pairs, 2]: of the chosen answer, then of the rejected one. Before the
  // first training step.
  virtual void SetReferences(std::vector<float> references) = 0;
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Fills `out`. Called from the host lane only; allocates nothing. DataLoss or
  // InvalidArgument name the file and the token position.
  virtual absl::Status Fill(const BatchRequest& request,
                            const BatchPointers& out) = 0;

  // The trained tokens of the step's whole global batch over all its tokens:
  // the same on every rank, whatever the layout. The step's loss is divided by
  // it (worker/train/trained_tokens.h). A source of pairs counts a pair as one
  // trained token, so that the loss is the mean over pairs.
  virtual absl::StatusOr<double> TrainedShare(DataSplit /*split*/,
                                              int64_t /*step*/,
                                              int64_t /*global_batch*/) {
    return 1.0;
  }

  // Whether batches of training steps may be asked for before their step: not
  // where somebody gives each when its step begins.
  virtual bool ReadsAhead() const { return true; }

  // The sources of pairs among what it reads; borrowed.
  virtual std::vector<PairSource*> PairSources() { return {}; }
};

// The data of one source, which a job reads alone or as a part of a mixture.
class SampleDataset : public BatchSource, public SampleSource {
 public:
  // Says for people how records became samples; empty: nothing to say.
  virtual std::string Describe() const { return ""; }
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_BATCH_SOURCE_H_
