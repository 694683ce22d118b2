#include "worker/data/sample_text.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/data/tokenizer.h"

namespace millrace {
namespace {

// The size of the text that trains a tokenizer. It suffices for tens of
// thousands of pieces and takes a few seconds.
constexpr int64_t kSampleBytes = 4 * kMiB;
// Packed files hold more text than bytes, so that the share of it that is taken
// is a guess.
constexpr int64_t kMaxSampleBytes = 4 * kSampleBytes;
constexpr size_t kSentenceBytes = 2 << 10;

class Sampler {
 public:
  explicit Sampler(int64_t total_bytes)
      : share_(std::min(
            1.0, static_cast<double>(kSampleBytes) /
                     static_cast<double>(std::max<int64_t>(1, total_bytes)))) {}

  void Add(absl::string_view text) {
    while (!text.empty()) {
      const size_t size = FirstChunkBytes(text, kSentenceBytes);
      seen_bytes_ += static_cast<int64_t>(size);
      if (static_cast<double>(taken_bytes_) <
              share_ * static_cast<double>(seen_bytes_) &&
          taken_bytes_ < kMaxSampleBytes) {
        sample_.emplace_back(text.substr(0, size));
        taken_bytes_ += static_cast<int64_t>(size);
      }
      text.remove_prefix(size);
    }
  }
  std::vector<std::string> Take() { return std::move(sample_); }

 private:
  const double share_;
  int64_t seen_bytes_ = 0;
  int64_t taken_bytes_ = 0;
  std::vector<std::string> sample_;
};

absl::Status NoText(const std::vector<DataSource>& sources,
                    const TextSkips& skips, const std::string& broken) {
  std::vector<std::string> keys;
  size_t num_files = 0;
  for (const DataSource& source : sources) {
    keys.push_back(source.key);
    num_files += source.files.size();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(absl::StrJoin(keys, ", "), ": ", num_files,
                   num_files == 1 ? " file" : " files",
                   " matched, none of them usable text: ",
                   broken.empty() ? DescribeSkips(skips) : broken));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SampleText(
    const std::vector<DataSource>& sources,
    const std::function<void(int64_t)>& progress) {
  int64_t total_bytes = 0;
  for (const DataSource& source : sources) total_bytes += source.num_bytes();
  Sampler sampler(total_bytes);
  TextSkips skips;
  std::string broken;  // The first such record.
  int64_t done_bytes = 0;
  for (const DataSource& source : sources) {
    for (const SourceFile& file : source.files) {
      ASSIGN_OR_RETURN(const std::vector<RecordPart> parts,
                       CutIntoParts(file.file, file.format,
                                    std::numeric_limits<int64_t>::max() / 2));
      for (const RecordPart& part : parts) {
        ASSIGN_OR_RETURN(const std::unique_ptr<RecordReader> reader,
                         OpenRecords(part, {source.column}));
        while (true) {
          ASSIGN_OR_RETURN(std::optional<Record> record, reader->Next());
          if (!record.has_value()) break;
          CountSkip(record->verdict(), record->place().path, &skips);
          const absl::StatusOr<std::string> text =
              record->TakeText(source.column);
          if (text.ok()) {
            sampler.Add(*text);
          } else if (broken.empty() &&
                     record->verdict() == TextVerdict::kText) {
            broken = absl::StrCat(DescribePlace(record->place()), ": ",
                                  text.status().message());
          }
        }
      }
      done_bytes += file.file.size_bytes;
      if (progress) progress(done_bytes);
    }
  }
  std::vector<std::string> sample = sampler.Take();
  if (sample.empty()) return NoText(sources, skips, broken);
  return sample;
}

}  // namespace millrace
