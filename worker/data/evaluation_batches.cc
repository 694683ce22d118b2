#include "worker/data/evaluation_batches.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/data/open_samples.h"

namespace millrace {
namespace {

// Nothing of a set is held out.
constexpr DataSplit kAllOfSet = DataSplit::kTraining;

absl::Status InSet(const std::string& name, const absl::Status& status) {
  // A set is read as the one source of a mixture.
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, "data.sources[0]: ");
  return absl::Status(status.code(),
                      absl::StrCat("evaluation.sets.", name, ": ", message));
}

// The data section that a set stands for.
absl::StatusOr<DataSpec> DataOfSet(const DataSourceSpec& set,
                                   const DataSpec& data,
                                   const std::string& tokenizer_path) {
  DataSpec spec = data;
  spec.text.clear();
  spec.indexed.clear();
  spec.sources.clear();
  spec.tokenizer = tokenizer_path;
  spec.validation_fraction = 0;
  spec.max_bytes = 0;
  const auto is_indexed = [](const std::string& file) {
    return absl::EndsWith(file, ".bin");
  };
  if (set.format == "text") {
    for (const std::string& file : set.files) {
      (is_indexed(file) ? spec.indexed : spec.text).push_back(file);
    }
  } else if (set.format == "indexed" ||
             (!set.has_samples() &&
              std::ranges::all_of(set.files, is_indexed))) {
    spec.indexed = set.files;
  } else {
    spec.sources = {set};
  }
  if (!spec.text.empty() && !spec.indexed.empty()) {
    return absl::InvalidArgumentError(
        "holds .bin files and text; make two sets of it");
  }
  if (spec.indexed.empty() && tokenizer_path.empty()) {
    return absl::InvalidArgumentError(
        "holds text, but the job trains on tokens and has no tokenizer; name "
        ".bin files, or the tokenizer in data.tokenizer");
  }
  return spec;
}

}  // namespace

absl::StatusOr<std::vector<EvaluationSet>> PrepareEvaluation(
    const JobSpec& job, const PreparedData& training, int32_t num_threads) {
  // The files beside a tokenizer that the job names say more than the copy that
  // was kept of it.
  const std::string tokenizer = job.data.tokenizer == "auto"
                                    ? training.tokenizer_path
                                    : job.data.tokenizer;
  std::vector<EvaluationSet> sets;
  for (const auto& [name, set] : job.evaluation.sets) {
    const absl::StatusOr<DataSpec> data = DataOfSet(set, job.data, tokenizer);
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
    const auto spec = job.evaluation.sets.find(set.name);
    absl::StatusOr<std::unique_ptr<SampleDataset>> dataset = OpenSamples(
        job, {.prefixes = set.prefixes,
              .source = spec == job.evaluation.sets.end() ? DataSourceSpec()
                                                          : spec->second});
    if (!dataset.ok()) return InSet(set.name, dataset.status());
    int64_t num_sequences = (*dataset)->num_samples(DataSplit::kTraining);
    if (job.evaluation.max_sequences > 0) {
      num_sequences = std::min(num_sequences, job.evaluation.max_sequences);
    }
    source->sets_.push_back({.name = set.name,
                             .samples = *std::move(dataset),
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

std::vector<PairSource*> EvaluationBatches::PairSources() {
  std::vector<PairSource*> sources;
  if (training_ != nullptr) sources = training_->PairSources();
  for (const Set& set : sets_) {
    for (PairSource* const source : set.samples->PairSources()) {
      sources.push_back(source);
    }
  }
  return sources;
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
  const int64_t num_of_set = std::clamp<int64_t>(
      selected->num_sequences - first, 0, request.num_sequences);
  for (int64_t i = 0; i < num_of_set; ++i) {
    RETURN_IF_ERROR(selected->samples->ReadSample(
        kAllOfSet, first + i, OneSequence(out, i, sequence_length_)));
  }
  const int64_t begin = num_of_set * sequence_length_;
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
    const int64_t first = (step - 1) * global_batch;
    const int64_t end = std::min(first + global_batch, selected->num_sequences);
    int64_t num_trained = 0;
    for (int64_t number = first; number < end; ++number) {
      ASSIGN_OR_RETURN(const int64_t of_sequence,
                       selected->samples->NumTrained(kAllOfSet, number));
      num_trained += of_sequence;
    }
    return static_cast<double>(num_trained) /
           static_cast<double>(global_batch * sequence_length_);
  }
  if (training_ != nullptr) {
    return training_->TrainedShare(split, step, global_batch);
  }
  return absl::FailedPreconditionError("there is no data to train on");
}

}  // namespace millrace
