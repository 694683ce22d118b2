#include "worker/data/encode_text.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/data/hasher.h"

namespace millrace {
namespace {

// The size of the text that trains a tokenizer. It suffices for tens of
// thousands of pieces and takes a few seconds.
constexpr int64_t kSampleBytes = 4 * kMiB;
constexpr size_t kSentenceBytes = 2 << 10;
// Text in memory at once while encoding.
constexpr int64_t kWindowBytes = 32 * kMiB;

void Report(const PrepareOptions& options, PrepareStage stage,
            int64_t done_bytes, int64_t total_bytes) {
  if (options.progress) options.progress({stage, done_bytes, total_bytes});
}

absl::Status NothingUsable(size_t num_files, const TextSkips& skips) {
  return absl::InvalidArgumentError(absl::StrCat(
      "data.text: ", num_files, num_files == 1 ? " file" : " files",
      " matched, none of them usable text: ", DescribeSkips(skips)));
}

struct EncodedFile {
  TextVerdict verdict = TextVerdict::kText;
  absl::Status status;
  std::vector<int32_t> tokens;
};

// Encodes files on several threads and writes them in order, a window of files
// at a time.
class Encoder {
 public:
  Encoder(const std::vector<DataFile>& files, const Tokenizer& tokenizer,
          const PrepareOptions& options)
      : files_(files),
        tokenizer_(tokenizer),
        options_(options),
        total_bytes_(TotalBytes(files)) {}

  absl::Status Run(IndexedDatasetWriter* writer, PreparedData* data) {
    Hasher hasher;
    for (size_t begin = 0; begin < files_.size();) {
      const size_t end = WindowEnd(begin);
      std::vector<EncodedFile> window = EncodeWindow(begin, end);
      for (size_t i = 0; i < window.size(); ++i) {
        const EncodedFile& encoded = window[i];
        const std::string& path = files_[begin + i].path;
        if (!encoded.status.ok()) {
          return absl::Status(
              encoded.status.code(),
              absl::StrCat(path, ": ", encoded.status.message()));
        }
        CountSkip(encoded.verdict, path, &data->skips);
        if (encoded.verdict != TextVerdict::kText) continue;
        RETURN_IF_ERROR(writer->AddDocument(encoded.tokens));
        hasher.Add(encoded.tokens.data(),
                   encoded.tokens.size() * sizeof(int32_t));
        data->num_tokens += static_cast<int64_t>(encoded.tokens.size());
        ++data->num_documents;
      }
      begin = end;
    }
    data->fingerprint = hasher.Digest();
    return absl::OkStatus();
  }

 private:
  size_t WindowEnd(size_t begin) const {
    size_t end = begin;
    for (int64_t bytes = 0; end < files_.size() && bytes < kWindowBytes;) {
      bytes += files_[end++].size_bytes;
    }
    return end;
  }

  std::vector<EncodedFile> EncodeWindow(size_t begin, size_t end) {
    std::vector<EncodedFile> window(end - begin);
    std::atomic<size_t> next = begin;
    const auto work = [&](bool reports) {
      for (size_t i = next++; i < end; i = next++) {
        EncodeFile(files_[i], &window[i - begin]);
        done_bytes_ += files_[i].size_bytes;
        if (reports) {
          Report(options_, PrepareStage::kEncoding, done_bytes_, total_bytes_);
        }
      }
    };
    std::vector<std::thread> helpers;
    for (int32_t i = 1; i < options_.num_threads; ++i) {
      helpers.emplace_back(work, false);
    }
    work(true);
    for (std::thread& helper : helpers) helper.join();
    return window;
  }

  void EncodeFile(const DataFile& file, EncodedFile* encoded) const {
    std::string text;
    encoded->verdict = ReadText(file, &text);
    if (encoded->verdict != TextVerdict::kText) return;
    encoded->status = tokenizer_.EncodeDocument(text, &encoded->tokens);
  }

  const std::vector<DataFile>& files_;
  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
  const int64_t total_bytes_;
  std::atomic<int64_t> done_bytes_ = 0;
};

}  // namespace

int64_t TotalBytes(const std::vector<DataFile>& files) {
  int64_t total = 0;
  for (const DataFile& file : files) total += file.size_bytes;
  return total;
}

absl::StatusOr<std::vector<std::string>> SampleText(
    const std::vector<DataFile>& files, const PrepareOptions& options) {
  const int64_t total_bytes = TotalBytes(files);
  std::vector<std::string> sample;
  std::string text;
  TextSkips skips;
  int64_t seen_bytes = 0;
  int64_t taken_bytes = 0;
  int64_t done_bytes = 0;
  for (const DataFile& file : files) {
    CountSkip(ReadText(file, &text), file.path, &skips);
    absl::string_view rest = text;
    while (!rest.empty()) {
      const size_t size = FirstChunkBytes(rest, kSentenceBytes);
      seen_bytes += static_cast<int64_t>(size);
      const double share = std::min(
          1.0, static_cast<double>(kSampleBytes) /
                   static_cast<double>(std::max<int64_t>(1, total_bytes)));
      if (static_cast<double>(taken_bytes) <
          share * static_cast<double>(seen_bytes)) {
        sample.emplace_back(rest.substr(0, size));
        taken_bytes += static_cast<int64_t>(size);
      }
      rest.remove_prefix(size);
    }
    done_bytes += file.size_bytes;
    Report(options, PrepareStage::kReading, done_bytes, total_bytes);
  }
  if (sample.empty()) return NothingUsable(files.size(), skips);
  return sample;
}

absl::Status EncodeTextFiles(const std::vector<DataFile>& files,
                             const Tokenizer& tokenizer,
                             const PrepareOptions& options,
                             IndexedDatasetWriter* writer, PreparedData* data) {
  RETURN_IF_ERROR(Encoder(files, tokenizer, options).Run(writer, data));
  if (data->num_documents == 0) return NothingUsable(files.size(), data->skips);
  return absl::OkStatus();
}

}  // namespace millrace
