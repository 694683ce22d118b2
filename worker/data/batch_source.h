// The source of a rank's micro-batches. The sequence of samples depends only on
// (seed, step), never on the layout, the rank or restarts.

#ifndef MILLRACE_WORKER_DATA_BATCH_SOURCE_H_
#define MILLRACE_WORKER_DATA_BATCH_SOURCE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

enum class DataSplit { kTraining, kValidation };

// Sequence `sequence_idx` of a global batch of step `step` is the same for
// every layout: data replica d, micro-batch m hold sequences
//   (d * num_microbatches + m) * micro_batch + [0, micro_batch).
struct BatchRequest {
  DataSplit split;
  int64_t step;                // The first training step is 1.
  int64_t global_batch;        // Sequences of the step.
  int64_t first_sequence_idx;  // In [0, global_batch).
  int64_t num_sequences;
};

// Each [num_sequences, sequence_length]; see OpKind::kLoadBatch. A token whose
// target is negative is not trained: it has no loss and no gradient.
struct BatchPointers {
  int32_t* tokens;
  int32_t* targets;
  int32_t* document_starts;
};

// The `sequence_idx`-th sequence of a batch.
inline BatchPointers OneSequence(const BatchPointers& batch,
                                 int64_t sequence_idx, int64_t length) {
  return {.tokens = batch.tokens + sequence_idx * length,
          .targets = batch.targets + sequence_idx * length,
          .document_starts = batch.document_starts + sequence_idx * length};
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

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Fills `out`. Called from the host lane only; allocates nothing. DataLoss or
  // InvalidArgument name the file and the token position.
  virtual absl::Status Fill(const BatchRequest& request,
                            const BatchPointers& out) = 0;

  // The trained tokens of the step's whole global batch over all its tokens:
  // the same on every rank, whatever the layout. The step's loss is divided by
  // it (worker/train/trained_tokens.h).
  virtual absl::StatusOr<double> TrainedShare(DataSplit /*split*/,
                                              int64_t /*step*/,
                                              int64_t /*global_batch*/) {
    return 1.0;
  }

  // Whether batches of training steps may be asked for before their step: not
  // where somebody gives each when its step begins.
  virtual bool ReadsAhead() const { return true; }
};

// The data of one source, which a job reads alone or as a part of a mixture.
class SampleDataset : public BatchSource, public SampleSource {
 public:
  // Says for people how records became samples; empty: nothing to say.
  virtual std::string Describe() const { return ""; }
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_BATCH_SOURCE_H_
