#include "worker/data/dataset.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

// Decides which samples are held out. The same for every seed, so that runs
// that differ in their seed are judged on the same samples.
constexpr uint64_t kSplitKey = 0x76616C6964617465;

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every input bit
// changes about half of the output bits.
uint64_t Mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// A permutation of [0, 2^(2 half_bits)): a Feistel network whose rounds are
// keyed hashes. Four rounds make a pseudo-random permutation (Luby and Rackoff,
// 1988); the halves here are small, so there are a few more.
uint64_t Feistel(uint64_t key, int half_bits, uint64_t value) {
  constexpr int kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits;
  uint64_t right = value & mask;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t hash =
        Mix(key + (right << 4 | static_cast<uint64_t>(round)));
    left = std::exchange(right, left ^ (hash & mask));
  }
  return left << half_bits | right;
}

}  // namespace

int64_t PermutedIndex(uint64_t key, int64_t size, int64_t position) {
  CHECK(position >= 0 && position < size) << position << " of " << size;
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  const int half_bits = std::max(1, (bits + 1) / 2);
  // Walking the cycle until it comes back into [0, size) keeps it a permutation
  // (Black and Rogaway, 2002). The domain is below 4 size, so the walk is
  // short.
  auto value = static_cast<uint64_t>(position);
  do {
    value = Feistel(Mix(key), half_bits, value);
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

absl::StatusOr<std::unique_ptr<PackedDataset>> PackedDataset::Open(
    const DatasetOptions& options) {
  CHECK(options.sequence_length > 0) << options.sequence_length;
  if (options.prefixes.empty()) {
    return absl::InvalidArgumentError(
        "no data: data.text or data.indexed must name some");
  }
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.validation_fraction is ",
                     options.validation_fraction, ", expected [0, 1)"));
  }
  std::vector<IndexedDataset> files;
  for (const std::string& prefix : options.prefixes) {
    ASSIGN_OR_RETURN(IndexedDataset file, IndexedDataset::Open(prefix));
    files.push_back(std::move(file));
  }
  std::unique_ptr<PackedDataset> dataset(
      new PackedDataset(options, std::move(files)));
  const int64_t num_needed = options.validation_fraction > 0 ? 2 : 1;
  const int64_t num_samples = dataset->num_training_ + dataset->num_validation_;
  if (num_samples < num_needed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the data has ", dataset->num_tokens(), " tokens, but ", num_needed,
        num_needed == 1 ? " sample" : " samples (training and validation)",
        " of model.sequence_length ", options.sequence_length, " need ",
        num_needed * options.sequence_length + 1,
        ": give more data or shorten model.sequence_length"));
  }
  return dataset;
}

PackedDataset::PackedDataset(const DatasetOptions& options,
                             std::vector<IndexedDataset> files)
    : options_(options), files_(std::move(files)), file_begins_{0} {
  for (const IndexedDataset& file : files_) {
    file_begins_.push_back(file_begins_.back() + file.num_tokens());
  }
  // The last target needs one token more than the inputs.
  const int64_t num_samples =
      std::max<int64_t>(0, num_tokens() - 1) / options_.sequence_length;
  if (options_.validation_fraction > 0 && num_samples > 1) {
    const double wanted =
        options_.validation_fraction * static_cast<double>(num_samples);
    num_validation_ =
        std::clamp<int64_t>(std::llround(wanted), 1, num_samples - 1);
  }
  num_training_ = num_samples - num_validation_;
}

int64_t PackedDataset::num_samples(DataSplit split) const {
  return split == DataSplit::kTraining ? num_training_ : num_validation_;
}

int64_t PackedDataset::SampleIndex(DataSplit split, int64_t number) const {
  CHECK(number >= 0) << number;
  const int64_t size = num_samples(split);
  CHECK(size > 0) << "there is no validation split";
  int64_t in_order = num_training_ + number % size;
  if (split == DataSplit::kTraining) {
    const auto epoch = static_cast<uint64_t>(number / size);
    in_order = PermutedIndex(Mix(options_.seed) + epoch, size, number % size);
  }
  return PermutedIndex(kSplitKey, num_training_ + num_validation_, in_order);
}

absl::Status PackedDataset::Fill(const BatchRequest& request,
                                 const BatchPointers& out) {
  CHECK(request.step >= 1) << request.step;
  CHECK(request.first_sequence_idx >= 0) << request.first_sequence_idx;
  CHECK(request.first_sequence_idx + request.num_sequences <=
        request.global_batch)
      << "sequences beyond the global batch";
  const int64_t length = options_.sequence_length;
  for (int64_t i = 0; i < request.num_sequences; ++i) {
    const int64_t number = (request.step - 1) * request.global_batch +
                           request.first_sequence_idx + i;
    RETURN_IF_ERROR(
        ReadSample(request.split, number, OneSequence(out, i, length)));
  }
  return absl::OkStatus();
}

absl::Status PackedDataset::ReadSample(DataSplit split, int64_t number,
                                       const BatchPointers& out) {
  if (num_samples(split) == 0) {
    return absl::InvalidArgumentError(
        "no validation data: data.validation_fraction is zero");
  }
  for (int64_t instead = number;; ++instead) {
    const int64_t sample = SampleIndex(split, instead);
    const absl::Status read =
        ReadSampleAt(sample * options_.sequence_length, out);
    // Ids outside the vocabulary; everything else is no matter of a sample.
    if (!absl::IsInvalidArgument(read)) return read;
    const bool is_new = broken_.insert(sample).second;
    if (static_cast<int64_t>(broken_.size()) > options_.max_broken ||
        instead - number > num_samples(split)) {
      return read;
    }
    if (is_new) {
      std::cerr << "sample " << sample << " is left out: " << read.message()
                << " (data.broken_records allows " << options_.max_broken << ")"
                << std::endl;
    }
  }
}

absl::Status PackedDataset::ReadSampleAt(int64_t position,
                                         const BatchPointers& out) {
  const int64_t length = options_.sequence_length;
  RETURN_IF_ERROR(ReadTokens(position, length, out.tokens));
  std::copy(out.tokens + 1, out.tokens + length, out.targets);
  RETURN_IF_ERROR(ReadTokens(position + length, 1, out.targets + length - 1));
  FillDocumentStarts(position, out.document_starts);
  return absl::OkStatus();
}

size_t PackedDataset::FindFile(int64_t position) const {
  // The last file that begins at or before it; empty files come earlier.
  const auto after =
      std::upper_bound(file_begins_.begin(), file_begins_.end(), position);
  return static_cast<size_t>(after - file_begins_.begin()) - 1;
}

absl::Status PackedDataset::ReadTokens(int64_t position, int64_t count,
                                       int32_t* out) const {
  while (count > 0) {
    const size_t file_idx = FindFile(position);
    const int64_t num_here =
        std::min(count, file_begins_[file_idx + 1] - position);
    RETURN_IF_ERROR(files_[file_idx].Read(position - file_begins_[file_idx],
                                          num_here, options_.vocab_size, out));
    position += num_here;
    out += num_here;
    count -= num_here;
  }
  return absl::OkStatus();
}

void PackedDataset::FillDocumentStarts(int64_t position, int32_t* out) const {
  const int64_t end = position + options_.sequence_length;
  int64_t at = position;
  while (at < end) {
    const size_t file_idx = FindFile(at);
    const IndexedDataset& file = files_[file_idx];
    const int64_t file_begin = file_begins_[file_idx];
    const int64_t document_idx = file.FindDocument(at - file_begin);
    const int64_t begin = file_begin + file.DocumentBegin(document_idx);
    const int64_t document_end =
        file_begin + file.DocumentBegin(document_idx + 1);
    const auto start =
        static_cast<int32_t>(std::max<int64_t>(0, begin - position));
    const int64_t run_end = std::min(end, document_end);
    std::fill(out + (at - position), out + (run_end - position), start);
    at = run_end;
  }
}

}  // namespace millrace
