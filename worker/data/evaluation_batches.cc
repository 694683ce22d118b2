#include "worker/data/evaluation_batches.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/data/dataset.h"

namespace millrace {
namespace {

absl::Status InSet(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("evaluation.sets.", name,
                                                  ": ", status.message()));
}

// The data section that a set stands for.
absl::StatusOr<DataSpec> DataOfSet(const std::vector<std::string>& files,
                                   const DataSpec& data,
                                   const std::string& tokenizer_path) {
  DataSpec spec = {.tokenizer = tokenizer_path,
                   .end_of_document = data.end_of_document,
                   .validation_fraction = 0,
                   .cache_directory = data.cache_directory};
  for (const std::string& file : files) {
    (absl::EndsWith(file, ".bin") ? spec.indexed : spec.text).push_back(file);
  }
  if (!spec.text.empty() && !spec.indexed.empty()) {
    return absl::InvalidArgumentError(
        "holds .bin files and text; make two sets of it");
  }
  if (!spec.text.empty() && tokenizer_path.empty()) {
    return absl::InvalidArgumentError(
        "holds text, but the job trains on tokens and has no tokenizer; name "
        ".bin files, or the tokenizer in data.tokenizer");
  }
  return spec;
}

}  // namespace

absl::StatusOr<std::vector<EvaluationSet>> PrepareEvaluation(
    const JobSpec& job, const PreparedData& training, int32_t num_threads) {
  // Of indexed data nobody needed the tokenizer so far.
  const std::string tokenizer =
      !training.tokenizer_path.empty() || job.data.tokenizer == "auto"
          ? training.tokenizer_path
          : job.data.tokenizer;
  std::vector<EvaluationSet> sets;
  for (const auto& [name, files] : job.evaluation.sets) {
    const absl::StatusOr<DataSpec> data = DataOfSet(files, job.data, tokenizer);
    if (!data.ok()) return InSet(name, data.status());
    const absl::StatusOr<PreparedData> prepared =
        PrepareData({.data = *data,
                     .vocab_size = job.model.vocab_size,
                     .num_threads = num_threads});
    if (!prepared.ok()) return InSet(name, prepared.status());
    sets.push_back(
        {.name = name, .prefixes = prepared->sources.at(0).prefixes});
  }
  return sets;
}

EvaluationBatches::EvaluationBatches(std::unique_ptr<BatchSource> training,
                                     int64_t sequence_length)
    : training_(std::move(training)), sequence_length_(sequence_length) {}

absl::StatusOr<std::unique_ptr<EvaluationBatches>> EvaluationBatches::Open(
    const JobSpec& job, std::unique_ptr<BatchSource> training,
    const std::vector<EvaluationSet>& sets) {
  std::unique_ptr<EvaluationBatches> source(
      new EvaluationBatches(std::move(training), job.model.sequence_length));
  for (const EvaluationSet& set : sets) {
    // Seed and split are fixed, so that every job reads the same order.
    absl::StatusOr<std::unique_ptr<PackedDataset>> dataset =
        PackedDataset::Open({.prefixes = set.prefixes,
                             .vocab_size = job.model.vocab_size,
                             .sequence_length = job.model.sequence_length});
    if (!dataset.ok()) return InSet(set.name, dataset.status());
    int64_t num_sequences = (*dataset)->num_samples(DataSplit::kTraining);
    if (job.evaluation.max_sequences > 0) {
      num_sequences = std::min(num_sequences, job.evaluation.max_sequences);
    }
    source->sets_.push_back({.name = set.name,
                             .batches = *std::move(dataset),
                             .num_sequences = num_sequences});
  }
  return source;
}

void EvaluationBatches::FillSequence(const BatchRequest& request,
                                     const TokenSequence& sequence,
                                     const BatchPointers& out) const {
  const int64_t num_tokens = request.num_sequences * sequence_length_;
  std::fill_n(out.tokens, num_tokens, 0);
  std::fill_n(out.targets, num_tokens, -1);
  std::fill_n(out.document_starts, num_tokens, 0);
  if (request.first_sequence_idx > 0) return;
  const auto num_inputs = static_cast<int64_t>(sequence.tokens.size()) - 1;
  CHECK(num_inputs <= sequence_length_ && sequence.num_context >= 1);
  std::copy_n(sequence.tokens.begin(), num_inputs, out.tokens);
  std::copy(sequence.tokens.begin() + sequence.num_context,
            sequence.tokens.end(), out.targets + sequence.num_context - 1);
}

absl::Status EvaluationBatches::FillPairs(const BatchRequest& request,
                                          PairSource& pairs,
                                          const BatchPointers& out) const {
  const int64_t first =
      (request.step - 1) * request.global_batch + request.first_sequence_idx;
  const int64_t num_sequences = std::clamp<int64_t>(
      pairs.num_pair_sequences() - first, 0, request.num_sequences);
  for (int64_t i = 0; i < num_sequences; ++i) {
    RETURN_IF_ERROR(
        pairs.ReadPairs(first + i, OneSequence(out, i, sequence_length_)));
  }
  FillNothing(num_sequences, request.num_sequences, out);
  return absl::OkStatus();
}

void EvaluationBatches::FillNothing(int64_t begin, int64_t end,
                                    const BatchPointers& out) const {
  const int64_t first = begin * sequence_length_;
  const int64_t num_tokens = (end - begin) * sequence_length_;
  std::fill_n(out.tokens + first, num_tokens, 0);
  std::fill_n(out.targets + first, num_tokens, -1);
  std::fill_n(out.document_starts + first, num_tokens, 0);
}

absl::Status EvaluationBatches::Fill(const BatchRequest& request,
                                     const BatchPointers& out) {
  const Set* const selected = selected_;
  const TokenSequence* const sequence = sequence_;
  PairSource* const pairs = pairs_;
  const bool is_training = request.split == DataSplit::kTraining;
  if (!is_training && pairs != nullptr) return FillPairs(request, *pairs, out);
  if (!is_training && sequence != nullptr) {
    FillSequence(request, *sequence, out);
    return absl::OkStatus();
  }
  if (is_training || selected == nullptr) {
    if (training_ != nullptr) return training_->Fill(request, out);
    return absl::FailedPreconditionError("there is no data to train on");
  }
  const int64_t first =
      (request.step - 1) * request.global_batch + request.first_sequence_idx;
  BatchRequest of_set = request;
  of_set.split = DataSplit::kTraining;  // All samples of the set.
  of_set.num_sequences = std::clamp<int64_t>(selected->num_sequences - first, 0,
                                             request.num_sequences);
  if (of_set.num_sequences > 0) {
    RETURN_IF_ERROR(selected->batches->Fill(of_set, out));
  }
  const int64_t begin = of_set.num_sequences * sequence_length_;
  const int64_t end = request.num_sequences * sequence_length_;
  std::fill(out.tokens + begin, out.tokens + end, 0);
  std::fill(out.targets + begin, out.targets + end, -1);
  std::fill(out.document_starts + begin, out.document_starts + end, 0);
  return absl::OkStatus();
}

absl::StatusOr<double> EvaluationBatches::TrainedShare(DataSplit split,
                                                       int64_t step,
                                                       int64_t global_batch) {
  const Set* const selected = selected_;
  const TokenSequence* const sequence = sequence_;
  const bool is_training = split == DataSplit::kTraining;
  // Nobody asks for the mean over passes that compute references.
  if (!is_training && pairs_ != nullptr) return 1.0;
  if (!is_training && sequence != nullptr) {
    return static_cast<double>(sequence->num_scored()) /
           static_cast<double>(global_batch * sequence_length_);
  }
  if (!is_training && selected != nullptr) {
    const int64_t of_pass = std::clamp<int64_t>(
        selected->num_sequences - (step - 1) * global_batch, 0, global_batch);
    return static_cast<double>(of_pass) / static_cast<double>(global_batch);
  }
  if (training_ != nullptr) {
    return training_->TrainedShare(split, step, global_batch);
  }
  return absl::FailedPreconditionError("there is no data to train on");
}

}  // namespace millrace
