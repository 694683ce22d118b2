#include "worker/data/prepare.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/tokenizer.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
using Progress = std::function<void(const PrepareProgress&)>;

// Raise when the same text would give other tokens than before.
constexpr int kCacheVersion = 1;
// What a tokenizer is trained on: enough for tens of thousands of pieces, and a
// few seconds of work.
constexpr int64_t kSampleBytes = 4 * kMiB;
constexpr size_t kSentenceBytes = 2 << 10;
// Text in memory at once while encoding.
constexpr int64_t kWindowBytes = 32 * kMiB;

void Report(const Progress& progress, PrepareStage stage, int64_t done_bytes,
            int64_t total_bytes) {
  if (progress) progress({stage, done_bytes, total_bytes});
}

int64_t TotalBytes(const std::vector<TextFile>& files) {
  int64_t total = 0;
  for (const TextFile& file : files) total += file.size_bytes;
  return total;
}

// Holds a file's lock, which the kernel drops when its process ends.
class FileLock {
 public:
  static absl::StatusOr<FileLock> Acquire(const std::string& path,
                                          const Progress& progress) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return LockError(path);
    FileLock lock(file);
    if (flock(file, LOCK_EX | LOCK_NB) == 0) return lock;
    if (errno != EWOULDBLOCK) return LockError(path);
    Report(progress, PrepareStage::kWaiting, 0, 0);
    while (flock(file, LOCK_EX) != 0) {
      if (errno != EINTR) return LockError(path);
    }
    return lock;
  }
  FileLock(FileLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock() {
    if (file_ >= 0) close(file_);
  }

 private:
  explicit FileLock(int file) : file_(file) {}
  static absl::Status LockError(const std::string& path) {
    return absl::InternalError(
        absl::StrCat("failed to lock ", path, ": ", strerror(errno),
                     "; data.cache_directory must be a folder to write in"));
  }
  int file_;
};

class Hasher {
 public:
  Hasher() : state_(XXH3_createState(), XXH3_freeState) {
    CHECK(state_ != nullptr) << "out of memory";
    XXH3_64bits_reset(state_.get());
  }
  void Add(const void* data, size_t num_bytes) {
    XXH3_64bits_update(state_.get(), data, num_bytes);
  }
  // With the size first, so that neighbours cannot run into each other.
  void AddString(absl::string_view text) {
    const uint64_t size = text.size();
    Add(&size, sizeof(size));
    Add(text.data(), text.size());
  }
  void AddNumber(int64_t value) { Add(&value, sizeof(value)); }
  uint64_t Digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

std::string CacheKey(const std::vector<TextFile>& files,
                     const PrepareOptions& options,
                     const std::string& tokenizer_model) {
  Hasher hasher;
  hasher.AddNumber(kCacheVersion);
  hasher.AddNumber(options.vocab_size);
  hasher.AddString(tokenizer_model);
  for (const TextFile& file : files) {
    hasher.AddString(file.path);
    hasher.AddNumber(file.size_bytes);  // With max_bytes applied.
    hasher.AddNumber(file.modified_ns);
  }
  return absl::StrFormat("%016x", hasher.Digest());
}

// The files of one cache folder. The summary is written last: where it is, the
// others are whole.
struct CachePaths {
  explicit CachePaths(const std::string& folder)
      : prefix(absl::StrCat(folder, "/tokens")),
        tokenizer(absl::StrCat(folder, "/tokenizer.model")),
        summary(absl::StrCat(folder, "/prepared.json")) {}
  std::string prefix;
  std::string tokenizer;
  std::string summary;
};

Json SummaryToJson(const PreparedData& data) {
  return {{"num_tokens", data.num_tokens},
          {"num_documents", data.num_documents},
          {"fingerprint", data.fingerprint},
          {"skipped",
           {{"unreadable", data.skips.unreadable},
            {"binary", data.skips.binary},
            {"invalid_utf8", data.skips.invalid_utf8},
            {"empty", data.skips.empty},
            {"example", data.skips.example}}}};
}

absl::StatusOr<PreparedData> LoadPrepared(const CachePaths& paths) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(paths.summary));
  PreparedData data;
  try {
    const Json json = Json::parse(text);
    json.at("num_tokens").get_to(data.num_tokens);
    json.at("num_documents").get_to(data.num_documents);
    json.at("fingerprint").get_to(data.fingerprint);
    const Json& skipped = json.at("skipped");
    skipped.at("unreadable").get_to(data.skips.unreadable);
    skipped.at("binary").get_to(data.skips.binary);
    skipped.at("invalid_utf8").get_to(data.skips.invalid_utf8);
    skipped.at("empty").get_to(data.skips.empty);
    skipped.at("example").get_to(data.skips.example);
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat(paths.summary, ": ", error.what()));
  }
  ASSIGN_OR_RETURN(const IndexedDataset tokens,
                   IndexedDataset::Open(paths.prefix));
  if (tokens.num_tokens() != data.num_tokens || !FileExists(paths.tokenizer)) {
    return absl::DataLossError(
        absl::StrCat(paths.summary, ": does not fit the files beside it"));
  }
  data.prefixes = {paths.prefix};
  data.tokenizer_path = paths.tokenizer;
  data.from_cache = true;
  return data;
}

absl::Status NothingUsable(size_t num_files, const TextSkips& skips) {
  return absl::InvalidArgumentError(absl::StrCat(
      "data.text: ", num_files, num_files == 1 ? " file" : " files",
      " matched, none of them usable text: ", DescribeSkips(skips)));
}

// Takes sentences from all over the text, spread evenly, up to kSampleBytes.
absl::StatusOr<std::vector<std::string>> SampleText(
    const std::vector<TextFile>& files, const Progress& progress) {
  const int64_t total_bytes = TotalBytes(files);
  std::vector<std::string> sample;
  std::string text;
  TextSkips skips;
  int64_t seen_bytes = 0;
  int64_t taken_bytes = 0;
  int64_t done_bytes = 0;
  for (const TextFile& file : files) {
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
    Report(progress, PrepareStage::kReading, done_bytes, total_bytes);
  }
  if (sample.empty()) return NothingUsable(files.size(), skips);
  return sample;
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
  Encoder(const std::vector<TextFile>& files, const Tokenizer& tokenizer,
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
          Report(options_.progress, PrepareStage::kEncoding, done_bytes_,
                 total_bytes_);
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

  void EncodeFile(const TextFile& file, EncodedFile* encoded) const {
    std::string text;
    encoded->verdict = ReadText(file, &text);
    if (encoded->verdict != TextVerdict::kText) return;
    encoded->status = tokenizer_.EncodeDocument(text, &encoded->tokens);
  }

  const std::vector<TextFile>& files_;
  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
  const int64_t total_bytes_;
  std::atomic<int64_t> done_bytes_ = 0;
};

absl::StatusOr<PreparedData> EncodeText(const std::vector<TextFile>& files,
                                        const PrepareOptions& options,
                                        std::string tokenizer_model,
                                        const CachePaths& paths) {
  std::string tokenizer_name = options.data.tokenizer;
  if (tokenizer_model.empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> sample,
                     SampleText(files, options.progress));
    Report(options.progress, PrepareStage::kTrainingTokenizer, 0,
           TotalBytes(files));
    ASSIGN_OR_RETURN(tokenizer_model,
                     TrainTokenizer(sample, options.vocab_size));
    tokenizer_name = paths.tokenizer;
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::FromModel(tokenizer_model, tokenizer_name,
                                        options.vocab_size));
  PreparedData data;
  ASSIGN_OR_RETURN(IndexedDatasetWriter writer,
                   IndexedDatasetWriter::Create(
                       paths.prefix, NarrowestTokenType(options.vocab_size)));
  RETURN_IF_ERROR(Encoder(files, *tokenizer, options).Run(&writer, &data));
  if (data.num_documents == 0) return NothingUsable(files.size(), data.skips);
  RETURN_IF_ERROR(WriteFileAtomically(paths.tokenizer, tokenizer_model));
  RETURN_IF_ERROR(writer.Finish());
  RETURN_IF_ERROR(
      WriteFileAtomically(paths.summary, SummaryToJson(data).dump(2) + "\n"));
  data.prefixes = {paths.prefix};
  data.tokenizer_path = paths.tokenizer;
  return data;
}

absl::StatusOr<PreparedData> PrepareText(const PrepareOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<TextFile> files,
                   FindTextFiles(options.data.text, options.data.max_bytes));
  std::string tokenizer_model;
  if (options.data.tokenizer != "auto") {
    ASSIGN_OR_RETURN(tokenizer_model, ReadFile(options.data.tokenizer));
    if (tokenizer_model.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.tokenizer: ", options.data.tokenizer,
                       " is empty; expected a SentencePiece model, or `auto`"));
    }
  }
  const std::string cache = options.data.cache_directory.empty()
                                ? DefaultCacheDirectory()
                                : options.data.cache_directory;
  const std::string folder =
      absl::StrCat(cache, "/data/", CacheKey(files, options, tokenizer_model));
  const CachePaths paths(folder);
  absl::StatusOr<PreparedData> cached = LoadPrepared(paths);
  if (cached.ok()) return cached;

  RETURN_IF_ERROR(MakeDirectories(folder));
  ASSIGN_OR_RETURN(const FileLock lock,
                   FileLock::Acquire(folder + ".lock", options.progress));
  // Another process may have done it while this one waited. A damaged cache is
  // made anew.
  cached = LoadPrepared(paths);
  if (cached.ok()) return cached;
  return EncodeText(files, options, std::move(tokenizer_model), paths);
}

absl::StatusOr<PreparedData> PrepareIndexed(const PrepareOptions& options) {
  PreparedData data;
  data.from_cache = true;
  Hasher hasher;
  for (const std::string& path : options.data.indexed) {
    ASSIGN_OR_RETURN(const IndexedDataset dataset, IndexedDataset::Open(path));
    data.num_tokens += dataset.num_tokens();
    data.num_documents += dataset.num_documents();
    data.prefixes.push_back(IndexedPrefix(path));
    hasher.AddNumber(static_cast<int64_t>(dataset.type()));
    hasher.AddNumber(dataset.num_tokens());
    for (int64_t i = 0; i < dataset.num_documents(); ++i) {
      hasher.AddNumber(dataset.DocumentBegin(i));
    }
  }
  data.fingerprint = hasher.Digest();
  return data;
}

}  // namespace

const char* PrepareStageName(PrepareStage stage) {
  switch (stage) {
    case PrepareStage::kWaiting:
      return "waiting for another process that prepares this data";
    case PrepareStage::kReading:
      return "reading text";
    case PrepareStage::kTrainingTokenizer:
      return "training the tokenizer";
    case PrepareStage::kEncoding:
      return "encoding text";
  }
  CHECK(false) << "unknown stage";
}

std::string DefaultCacheDirectory() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME");
      cache != nullptr && cache[0] == '/') {
    return absl::StrCat(cache, "/millrace");
  }
  const char* home = std::getenv("HOME");
  return absl::StrCat(home != nullptr && home[0] == '/' ? home : "/var/tmp",
                      "/.cache/millrace");
}

absl::StatusOr<PreparedData> PrepareData(const PrepareOptions& options) {
  const bool has_text = !options.data.text.empty();
  const bool has_indexed = !options.data.indexed.empty();
  if (has_text == has_indexed) {
    return absl::InvalidArgumentError(
        absl::StrCat(has_text ? "both data.text and data.indexed are given"
                              : "neither data.text nor data.indexed is given",
                     ": give one of them"));
  }
  return has_text ? PrepareText(options) : PrepareIndexed(options);
}

}  // namespace millrace
