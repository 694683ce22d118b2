#include "worker/data/prepare.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "worker/data/encode_text.h"
#include "worker/data/hasher.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/tokenizer.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
using Progress = std::function<void(const PrepareProgress&)>;

// Raise when the same text would give other tokens than before.
constexpr int kCacheVersion = 1;

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
    if (progress) progress({PrepareStage::kWaiting, 0, 0});
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

std::string CacheKey(const std::vector<DataFile>& files,
                     const PrepareOptions& options,
                     const TokenizerFiles& given) {
  Hasher hasher;
  hasher.AddNumber(kCacheVersion);
  hasher.AddNumber(options.vocab_size);
  hasher.AddString(given.content);
  if (!given.end_of_document.empty()) hasher.AddString(given.end_of_document);
  for (const DataFile& file : files) {
    hasher.AddString(file.path);
    hasher.AddNumber(file.size_bytes);  // With max_bytes applied.
    hasher.AddNumber(file.modified_ns);
  }
  return absl::StrFormat("%016x", hasher.Digest());
}

// The files of one cache folder. The summary is written last: where it is, the
// others are whole.
struct CachePaths {
  CachePaths(const std::string& folder, absl::string_view given_tokenizer)
      : prefix(absl::StrCat(folder, "/tokens")),
        tokenizer(absl::StrCat(folder, IsTokenizerJson(given_tokenizer)
                                           ? "/tokenizer.json"
                                           : "/tokenizer.model")),
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
  const absl::StatusOr<Json> parsed = ParseJson(text);
  if (!parsed.ok()) {
    return absl::DataLossError(
        absl::StrCat(paths.summary, ": ", parsed.status().message()));
  }
  const Json& json = *parsed;
  try {
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

absl::StatusOr<PreparedData> EncodeText(const std::vector<DataFile>& files,
                                        const PrepareOptions& options,
                                        TokenizerFiles tokenizer_files,
                                        const CachePaths& paths) {
  if (tokenizer_files.content.empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> sample,
                     SampleText(files, options));
    if (options.progress) {
      options.progress(
          {PrepareStage::kTrainingTokenizer, 0, TotalBytes(files)});
    }
    ASSIGN_OR_RETURN(tokenizer_files.content,
                     TrainTokenizer(sample, options.vocab_size));
    tokenizer_files.name = paths.tokenizer;
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::FromFiles(tokenizer_files, options.vocab_size));
  PreparedData data;
  ASSIGN_OR_RETURN(IndexedDatasetWriter writer,
                   IndexedDatasetWriter::Create(
                       paths.prefix, NarrowestTokenType(options.vocab_size)));
  RETURN_IF_ERROR(EncodeTextFiles(files, *tokenizer, options, &writer, &data));
  RETURN_IF_ERROR(
      WriteFileAtomically(paths.tokenizer, tokenizer_files.content));
  RETURN_IF_ERROR(writer.Finish());
  RETURN_IF_ERROR(WriteFileAtomically(paths.summary,
                                      JsonText(SummaryToJson(data), 2) + "\n"));
  data.prefixes = {paths.prefix};
  data.tokenizer_path = paths.tokenizer;
  return data;
}

absl::StatusOr<PreparedData> PrepareFiles(const std::vector<DataFile>& files,
                                          const PrepareOptions& options) {
  TokenizerFiles given{.end_of_document = options.data.end_of_document};
  if (options.data.tokenizer != "auto") {
    ASSIGN_OR_RETURN(given, ReadTokenizerFiles(options.data.tokenizer,
                                               options.data.end_of_document));
  }
  const std::string cache = options.data.cache_directory.empty()
                                ? DefaultCacheDirectory()
                                : options.data.cache_directory;
  const std::string folder =
      absl::StrCat(cache, "/data/", CacheKey(files, options, given));
  const CachePaths paths(folder, given.content);
  absl::StatusOr<PreparedData> cached = LoadPrepared(paths);
  if (cached.ok()) return cached;

  RETURN_IF_ERROR(MakeDirectories(folder));
  ASSIGN_OR_RETURN(const FileLock lock,
                   FileLock::Acquire(folder + ".lock", options.progress));
  // Another process may have done it while this one waited. A damaged cache is
  // made anew.
  cached = LoadPrepared(paths);
  if (cached.ok()) return cached;
  return EncodeText(files, options, std::move(given), paths);
}

absl::StatusOr<PreparedData> PrepareText(const PrepareOptions& options) {
  ASSIGN_OR_RETURN(
      FoundFiles text,
      FindDataFiles(options.data.text, "data.text", options.data.max_bytes));
  ASSIGN_OR_RETURN(PreparedData data, PrepareFiles(text.files, options));
  data.unmatched = std::move(text.unmatched);
  return data;
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
  if (options.data.synthetic) return PreparedData{.from_cache = true};
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
