#include "worker/data/sample_batches.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/data/dataset.h"

namespace millrace {
namespace {

// Decides which samples are held out, whatever the seed.
constexpr uint64_t kHeldOutKey = 0x73616D706C65736B;

}  // namespace

std::string TrainedPrefix(const std::string& prefix) {
  return prefix + ".trained";
}

absl::StatusOr<SampleWriter> SampleWriter::Create(const std::string& prefix,
                                                  int64_t vocab_size) {
  ASSIGN_OR_RETURN(
      IndexedDatasetWriter tokens,
      IndexedDatasetWriter::Create(prefix, NarrowestTokenType(vocab_size)));
  ASSIGN_OR_RETURN(
      IndexedDatasetWriter trained,
      IndexedDatasetWriter::Create(TrainedPrefix(prefix), TokenType::kUint8));
  return SampleWriter(std::move(tokens), std::move(trained));
}

absl::Status SampleWriter::Add(absl::Span<const int32_t> tokens,
                               absl::Span<const uint8_t> trained) {
  CHECK(tokens.size() == trained.size() && !tokens.empty());
  RETURN_IF_ERROR(tokens_.AddDocument(tokens));
  scratch_.assign(trained.begin(), trained.end());
  return trained_.AddDocument(scratch_);
}

absl::Status SampleWriter::Finish() {
  RETURN_IF_ERROR(trained_.Finish());
  return tokens_.Finish();
}

std::string DescribeSamples(const SampleCounts& counts) {
  const double trained =
      counts.num_tokens == 0
          ? 0
          : 100.0 * static_cast<double>(counts.num_trained_tokens) /
                static_cast<double>(counts.num_tokens);
  std::string text = absl::StrFormat(
      "%d samples in %d sequences, %.1f %% filled, %.0f %% of tokens trained",
      counts.num_used, counts.num_sequences, 100 * counts.fill_rate, trained);
  if (counts.num_shortened > 0) {
    absl::StrAppend(&text, "; ", counts.num_shortened,
                    " shortened to the sequence");
  }
  if (counts.num_dropped_long > 0) {
    absl::StrAppend(&text, "; ", counts.num_dropped_long,
                    " left out, longer than a sequence");
  }
  if (counts.num_untrained > 0) {
    absl::StrAppend(&text, "; ", counts.num_untrained,
                    " left out, without a trained token");
  }
  return text;
}

absl::StatusOr<std::unique_ptr<SampleBatches>> SampleBatches::Open(
    const SampleBatchesOptions& options) {
  CHECK(options.sequence_length > 0) << options.sequence_length;
  std::unique_ptr<SampleBatches> batches(new SampleBatches(options));
  std::vector<Sample> samples;
  RETURN_IF_ERROR(batches->ReadFiles(&samples));
  const auto num_samples = static_cast<int64_t>(samples.size());
  const int64_t num_needed = options.validation_fraction > 0 ? 2 : 1;
  if (num_samples == 0) {
    const SampleCounts& counts = batches->counts_;
    return absl::InvalidArgumentError(absl::StrCat(
        "0 trained tokens in ", counts.num_samples, " samples of ",
        options.name, ": ", counts.num_shortened, " are cut at ",
        "model.sequence_length ", options.sequence_length,
        " before the first trained token, ", counts.num_dropped_long,
        " are longer and left out",
        options.pairs ? ", since pairs are never cut" : " (data.long_samples)",
        "; raise model.sequence_length, or look at what is trained of them"));
  }
  if (num_samples < num_needed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "1 sample with trained tokens in ", options.name,
        ", but training and validation need one each: give more samples, or "
        "set data.validation_fraction to 0"));
  }
  const int64_t num_held_out =
      options.validation_fraction > 0
          ? std::clamp<int64_t>(std::llround(options.validation_fraction *
                                             static_cast<double>(num_samples)),
                                1, num_samples - 1)
          : 0;
  std::vector<Sample> training, validation;
  for (int64_t i = 0; i < num_samples; ++i) {
    const bool held_out =
        num_held_out > 0 &&
        PermutedIndex(kHeldOutKey, num_samples, i) < num_held_out;
    (held_out ? validation : training)
        .push_back(samples[static_cast<size_t>(i)]);
  }
  batches->references_.resize(2 * static_cast<size_t>(batches->num_pairs_));
  batches->training_ = batches->Pack(training);
  batches->validation_ = batches->Pack(validation);
  SampleCounts& counts = batches->counts_;
  counts.num_sequences = batches->num_samples(DataSplit::kTraining) +
                         batches->num_samples(DataSplit::kValidation);
  counts.fill_rate =
      static_cast<double>(counts.num_tokens) /
      static_cast<double>(counts.num_sequences * options.sequence_length);
  return batches;
}

absl::Status SampleBatches::ReadFiles(std::vector<Sample>* samples) {
  for (const std::string& prefix : options_.prefixes) {
    ASSIGN_OR_RETURN(IndexedDataset tokens, IndexedDataset::Open(prefix));
    ASSIGN_OR_RETURN(IndexedDataset trained,
                     IndexedDataset::Open(TrainedPrefix(prefix)));
    const size_t file_idx = tokens_.size();
    tokens_.push_back(std::move(tokens));
    trained_.push_back(std::move(trained));
    const int64_t num_documents = tokens_.back().num_documents();
    if (trained_.back().num_documents() != num_documents ||
        trained_.back().num_tokens() != tokens_.back().num_tokens()) {
      return absl::DataLossError(absl::StrCat(
          trained_.back().bin_path(), ": has ", trained_.back().num_tokens(),
          " marks, but ", tokens_.back().bin_path(), " has ",
          tokens_.back().num_tokens(), " tokens"));
    }
    if (options_.pairs && num_documents % 2 != 0) {
      return absl::DataLossError(
          absl::StrCat(tokens_.back().bin_path(), ": has ", num_documents,
                       " answers, an odd number, instead of pairs"));
    }
    for (int64_t i = 0; i < num_documents; i += options_.pairs ? 2 : 1) {
      RETURN_IF_ERROR(options_.pairs ? AddPair(file_idx, i, samples)
                                     : AddSample(file_idx, i, samples));
    }
  }
  tokens_scratch_.resize(static_cast<size_t>(options_.sequence_length) + 1);
  trained_scratch_.resize(tokens_scratch_.size());
  return absl::OkStatus();
}

absl::Status SampleBatches::CheckBegins(size_t file_idx,
                                        int64_t document_idx) const {
  const IndexedDataset& marks = trained_[file_idx];
  if (marks.DocumentBegin(document_idx) ==
      tokens_[file_idx].DocumentBegin(document_idx)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(marks.bin_path(), ": sample ", document_idx,
                   " begins elsewhere than in ", tokens_[file_idx].bin_path()));
}

absl::StatusOr<int64_t> SampleBatches::CountTrained(size_t file_idx,
                                                    int64_t begin,
                                                    int64_t length) {
  if (length <= 0) return 0;
  trained_scratch_.resize(static_cast<size_t>(length));
  RETURN_IF_ERROR(trained_[file_idx].Read(begin + 1, length, /*vocab_size=*/2,
                                          trained_scratch_.data()));
  return std::count(trained_scratch_.begin(), trained_scratch_.end(), 1);
}

absl::Status SampleBatches::AddSample(size_t file_idx, int64_t document_idx,
                                      std::vector<Sample>* samples) {
  RETURN_IF_ERROR(CheckBegins(file_idx, document_idx));
  const int64_t begin = tokens_[file_idx].DocumentBegin(document_idx);
  const int64_t num_tokens =
      tokens_[file_idx].DocumentBegin(document_idx + 1) - begin;
  ++counts_.num_samples;
  const int64_t length = std::min(num_tokens - 1, options_.sequence_length);
  if (length < num_tokens - 1) {
    if (options_.drops_long_samples) {
      ++counts_.num_dropped_long;
      return absl::OkStatus();
    }
    ++counts_.num_shortened;
  }
  ASSIGN_OR_RETURN(const int64_t num_trained,
                   CountTrained(file_idx, begin, length));
  if (num_trained == 0) {
    ++counts_.num_untrained;
    return absl::OkStatus();
  }
  ++counts_.num_used;
  counts_.num_tokens += length;
  counts_.num_trained_tokens += num_trained;
  samples->push_back({.file_idx = file_idx,
                      .begin = begin,
                      .length = length,
                      .num_trained = num_trained});
  return absl::OkStatus();
}

absl::Status SampleBatches::AddPair(size_t file_idx, int64_t document_idx,
                                    std::vector<Sample>* samples) {
  RETURN_IF_ERROR(CheckBegins(file_idx, document_idx));
  RETURN_IF_ERROR(CheckBegins(file_idx, document_idx + 1));
  const IndexedDataset& tokens = tokens_[file_idx];
  const int64_t begin = tokens.DocumentBegin(document_idx);
  const int64_t second = tokens.DocumentBegin(document_idx + 1);
  const int64_t chosen_length = second - begin - 1;
  const int64_t rejected_length =
      tokens.DocumentBegin(document_idx + 2) - second - 1;
  const int64_t pair_idx = num_pairs_++;
  ++counts_.num_samples;
  // A part of an answer is not what was preferred.
  if (chosen_length + rejected_length > options_.sequence_length) {
    ++counts_.num_dropped_long;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const int64_t num_chosen,
                   CountTrained(file_idx, begin, chosen_length));
  ASSIGN_OR_RETURN(const int64_t num_rejected,
                   CountTrained(file_idx, second, rejected_length));
  if (num_chosen == 0 || num_rejected == 0) {
    ++counts_.num_untrained;
    return absl::OkStatus();
  }
  ++counts_.num_used;
  counts_.num_tokens += chosen_length + rejected_length;
  counts_.num_trained_tokens += num_chosen + num_rejected;
  samples->push_back({.file_idx = file_idx,
                      .begin = begin,
                      .length = chosen_length + rejected_length,
                      .num_trained = 1,
                      .chosen_length = chosen_length,
                      .pair_idx = pair_idx});
  return absl::OkStatus();
}

std::vector<SampleBatches::Row> SampleBatches::Pack(
    const std::vector<Sample>& samples) const {
  std::vector<int64_t> lengths;
  for (const Sample& sample : samples) {
    lengths.push_back(options_.packs ? sample.length
                                     : options_.sequence_length);
  }
  std::vector<Row> rows;
  for (const PackedSequence& sequence :
       PackSamples(lengths, options_.sequence_length, options_.seed)) {
    Row& row = rows.emplace_back();
    for (const int64_t idx : sequence.samples) {
      const Sample& sample = samples[static_cast<size_t>(idx)];
      row.samples.push_back(sample);
      row.num_trained += sample.num_trained;
    }
  }
  return rows;
}

absl::StatusOr<const SampleBatches::Row*> SampleBatches::RowOf(
    DataSplit split, int64_t number) const {
  const std::vector<Row>& rows = SplitOf(split);
  if (rows.empty()) {
    return absl::InvalidArgumentError(
        "no samples are held out: data.validation_fraction is 0");
  }
  const auto size = static_cast<int64_t>(rows.size());
  int64_t idx = number % size;
  if (split == DataSplit::kTraining) {
    // Far from the keys of other epochs and seeds.
    const uint64_t key = options_.seed * 0x9E3779B97F4A7C15 +
                         static_cast<uint64_t>(number / size);
    idx = PermutedIndex(key, size, idx);
  }
  return &rows[static_cast<size_t>(idx)];
}

absl::StatusOr<double> SampleBatches::TrainedShare(DataSplit split,
                                                   int64_t step,
                                                   int64_t global_batch) {
  int64_t num_trained = 0;
  for (int64_t i = 0; i < global_batch; ++i) {
    ASSIGN_OR_RETURN(const int64_t of_row,
                     NumTrained(split, (step - 1) * global_batch + i));
    num_trained += of_row;
  }
  return static_cast<double>(num_trained) /
         static_cast<double>(global_batch * options_.sequence_length);
}

absl::Status SampleBatches::Fill(const BatchRequest& request,
                                 const BatchPointers& out) {
  for (int64_t i = 0; i < request.num_sequences; ++i) {
    const int64_t number = (request.step - 1) * request.global_batch +
                           request.first_sequence_idx + i;
    RETURN_IF_ERROR(ReadSample(request.split, number,
                               OneSequence(out, i, options_.sequence_length)));
  }
  return absl::OkStatus();
}

absl::Status SampleBatches::ReadSample(DataSplit split, int64_t number,
                                       const BatchPointers& out) {
  ASSIGN_OR_RETURN(const Row* row, RowOf(split, number));
  return FillRow(*row, out);
}

absl::StatusOr<int64_t> SampleBatches::NumTrained(DataSplit split,
                                                  int64_t number) const {
  ASSIGN_OR_RETURN(const Row* row, RowOf(split, number));
  return row->num_trained;
}

absl::Status SampleBatches::FillRow(const Row& row, const BatchPointers& out) {
  int64_t at = 0;
  for (const Sample& sample : row.samples) {
    RETURN_IF_ERROR(FillSample(sample, at, out));
    at += sample.length;
  }
  const int64_t rest = options_.sequence_length - at;
  std::fill_n(out.tokens + at, rest, 0);
  std::fill_n(out.targets + at, rest, -1);
  std::fill_n(out.document_starts + at, rest, static_cast<int32_t>(at));
  return absl::OkStatus();
}

absl::Status SampleBatches::FillSample(const Sample& sample, int64_t at,
                                       const BatchPointers& out) {
  if (sample.pair_idx < 0) {
    return FillDocument(sample.file_idx, sample.begin, sample.length, at, out);
  }
  const int64_t rejected_at = at + sample.chosen_length;
  RETURN_IF_ERROR(FillDocument(sample.file_idx, sample.begin,
                               sample.chosen_length, at, out));
  RETURN_IF_ERROR(
      FillDocument(sample.file_idx, sample.begin + sample.chosen_length + 1,
                   sample.length - sample.chosen_length, rejected_at, out));
  if (out.pair_starts == nullptr) return absl::OkStatus();
  std::fill_n(out.pair_starts + at, sample.length, static_cast<int32_t>(at));
  const float* const references =
      references_.data() + 2 * static_cast<size_t>(sample.pair_idx);
  std::fill_n(out.references + at, sample.chosen_length, references[0]);
  std::fill_n(out.references + rejected_at,
              sample.length - sample.chosen_length, references[1]);
  return absl::OkStatus();
}

absl::Status SampleBatches::FillDocument(size_t file_idx, int64_t begin,
                                         int64_t length, int64_t at,
                                         const BatchPointers& out) {
  RETURN_IF_ERROR(tokens_[file_idx].Read(begin, length + 1, options_.vocab_size,
                                         tokens_scratch_.data()));
  RETURN_IF_ERROR(trained_[file_idx].Read(begin, length + 1, /*vocab_size=*/2,
                                          trained_scratch_.data()));
  for (int64_t k = 0; k < length; ++k) {
    const auto next = static_cast<size_t>(k) + 1;
    out.tokens[at + k] = tokens_scratch_[next - 1];
    out.targets[at + k] =
        trained_scratch_[next] == 1 ? tokens_scratch_[next] : -1;
    out.document_starts[at + k] = static_cast<int32_t>(at);
  }
  return absl::OkStatus();
}

std::vector<PairSource::Place> SampleBatches::PlacesOf(int64_t number) const {
  std::vector<Place> places;
  int64_t at = 0;
  for (const Sample& sample : PairRow(number).samples) {
    places.push_back({.pair_idx = sample.pair_idx,
                      .chosen_begin = at,
                      .rejected_begin = at + sample.chosen_length});
    at += sample.length;
  }
  return places;
}

void SampleBatches::SetReferences(std::vector<float> references) {
  CHECK(static_cast<int64_t>(references.size()) == 2 * num_pairs_);
  references_ = std::move(references);
}

}  // namespace millrace
