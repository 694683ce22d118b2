// Held-out sets, beside the data that a job trains on.
//
// A set is read once, in one fixed order, so that every layout sees the same
// samples. Passes hold as many sequences as the layout says; those past the
// set's end have no targets, so they are not trained tokens and count for
// nothing.

#ifndef MILLRACE_WORKER_DATA_EVALUATION_BATCHES_H_
#define MILLRACE_WORKER_DATA_EVALUATION_BATCHES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "worker/data/batch_source.h"
#include "worker/data/prepare.h"

namespace millrace {

// A set of the job's evaluation section, tokenized.
struct EvaluationSet {
  std::string name;
  std::vector<std::string> prefixes;  // As in PreparedData.
};

// One text whose last tokens are to be scored.
struct TokenSequence {
  std::vector<int32_t> tokens;  // At most one more than a sequence holds.
  int64_t num_context = 0;      // Tokens before these, at least one.
  int64_t num_scored() const {
    return static_cast<int64_t>(tokens.size()) - num_context;
  }
};

// Tokenizes all sets with the tokenizer of `training`, into the same cache.
// Errors name the set.
absl::StatusOr<std::vector<EvaluationSet>> PrepareEvaluation(
    const JobSpec& job, const PreparedData& training, int32_t num_threads);

class EvaluationBatches : public BatchSource {
 public:
  // `training`: what the job trains on; null where nothing is trained.
  // InvalidArgument if a set holds no
  // sequence.
  static absl::StatusOr<std::unique_ptr<EvaluationBatches>> Open(
      const JobSpec& job, std::unique_ptr<BatchSource> training,
      const std::vector<EvaluationSet>& sets);

  // Training steps read `training`. Validation passes read its held-out share,
  // or the set that was selected.
  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override;

  // The tokens of the set or sequence that have a target, over all tokens of
  // the pass.
  absl::StatusOr<double> TrainedShare(DataSplit split, int64_t step,
                                      int64_t global_batch) override;

  // Those of the training data and of all sets.
  std::vector<PairSource*> PairSources() override;

  size_t num_sets() const { return sets_.size(); }
  const std::string& name(size_t set_idx) const { return sets_[set_idx].name; }
  // The sequences of a set that are read: all, or the first
  // evaluation.max_sequences.
  int64_t num_sequences(size_t set_idx) const {
    return sets_[set_idx].num_sequences;
  }

  // Validation passes read this set from now on. Not while one is under way.
  void Select(size_t set_idx) { selected_ = &sets_[set_idx]; }
  void SelectValidation() {
    selected_ = nullptr;
    sequence_ = nullptr;
    pairs_ = nullptr;
  }
  // Validation passes read the sequences of its pairs, and then sequences
  // without a target. Borrowed until the next call.
  void SelectPairs(PairSource& pairs) { pairs_ = &pairs; }
  // The first sequence of a pass is this one, with targets after its context
  // alone; the pass's other sequences have none. Borrowed until the next call.
  void SelectSequence(const TokenSequence& sequence) { sequence_ = &sequence; }

 private:
  struct Set {
    std::string name;
    std::unique_ptr<SampleDataset> samples;
    int64_t num_sequences = 0;
  };

  absl::Status FillPairs(const BatchRequest& request, PairSource& pairs,
                         const BatchPointers& out) const;
  // Sequences [begin, end) of `out` without a target.
  void FillNothing(int64_t begin, int64_t end, const BatchPointers& out) const;
  // Writes `sequence` as the request's sequence 0 and no targets elsewhere.
  void FillSequence(const BatchRequest& request, const TokenSequence& sequence,
                    const BatchPointers& out) const;

  EvaluationBatches(std::unique_ptr<BatchSource> training,
                    int64_t sequence_length);

  std::unique_ptr<BatchSource> training_;
  const int64_t sequence_length_;
  std::vector<Set> sets_;
  // Null: the held-out share of the training data. Read on the host lane.
  std::atomic<const Set*> selected_ = nullptr;
  std::atomic<const TokenSequence*> sequence_ = nullptr;  // Comes first.
  std::atomic<PairSource*> pairs_ = nullptr;              // Comes before it.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_EVALUATION_BATCHES_H_
