#include "worker/data/prepare.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file_lock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "worker/chat/chat_files.h"
#include "worker/data/chat_encoder.h"
#include "worker/data/hasher.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/preference_encoder.h"
#include "worker/data/record_encoder.h"
#include "worker/data/sample_text.h"
#include "worker/data/sources.h"
#include "worker/data/tokenizer.h"

namespace millrace {
namespace {

// Raise when the same data would give other tokens than before.
constexpr int kCacheVersion = 2;
constexpr int kPairsVersion = 2;  // Preference sources alone.

void AddFiles(const DataSource& source, Hasher* hasher) {
  hasher->AddString(source.column);
  for (const SourceFile& file : source.files) {
    hasher->AddString(file.file.path);
    hasher->AddNumber(file.file.size_bytes);  // With max_bytes applied.
    hasher->AddNumber(file.file.modified_ns);
    hasher->AddNumber(static_cast<int64_t>(file.format));
  }
}

class Preparation {
 public:
  Preparation(std::vector<DataSource> sources, const PrepareOptions& options)
      : sources_(std::move(sources)),
        options_(options),
        cache_(options.data.cache_directory.empty()
                   ? DefaultCacheDirectory()
                   : options.data.cache_directory) {
    for (const DataSource& source : sources_) {
      if (!source.is_indexed()) record_sources_.push_back(source);
      total_bytes_ += source.num_bytes();
    }
  }

  absl::StatusOr<PreparedData> Run() {
    if (!record_sources_.empty()) RETURN_IF_ERROR(FindTokenizer());
    RETURN_IF_ERROR(FindTemplate());
    Hasher hasher;
    for (const DataSource& source : sources_) {
      PreparedSource prepared{
          .key = source.key, .name = source.name, .weight = source.weight};
      if (source.is_indexed()) {
        RETURN_IF_ERROR(OpenIndexed(source, &prepared, &hasher));
      } else {
        RETURN_IF_ERROR(Convert(source, &prepared, &hasher));
      }
      data_.num_tokens += prepared.num_tokens;
      data_.num_documents += prepared.num_documents;
      data_.sources.push_back(std::move(prepared));
    }
    data_.fingerprint = hasher.Digest();
    data_.from_cache = data_.num_shards_made == 0 && !has_trained_;
    return std::move(data_);
  }

 private:
  void Report(PrepareStage stage, int64_t done_bytes) const {
    if (options_.progress) options_.progress({stage, done_bytes, total_bytes_});
  }

  // The given tokenizer, or the one trained on the records of all sources.
  absl::Status FindTokenizer() {
    if (options_.data.tokenizer != "auto") {
      ASSIGN_OR_RETURN(files_,
                       ReadTokenizerFiles(options_.data.tokenizer,
                                          options_.data.end_of_document));
      return absl::OkStatus();
    }
    Hasher hasher;
    hasher.AddNumber(kCacheVersion);
    hasher.AddNumber(options_.vocab_size);
    for (const DataSource& source : record_sources_) AddFiles(source, &hasher);
    const std::string folder =
        absl::StrFormat("%s/tokenizers/%016x", cache_, hasher.Digest());
    files_.name = absl::StrCat(folder, "/tokenizer.model");
    files_.end_of_document = options_.data.end_of_document;
    if (!FileExists(files_.name)) RETURN_IF_ERROR(TrainInto(folder));
    ASSIGN_OR_RETURN(files_.content, ReadFile(files_.name));
    return absl::OkStatus();
  }

  // Reads template and special tokens, where a source is of chat.
  absl::Status FindTemplate() {
    const auto chat = std::ranges::find_if(sources_, &DataSource::has_samples);
    if (chat == sources_.end()) return absl::OkStatus();
    if (!IsTokenizerJson(files_.content)) {
      return absl::InvalidArgumentError(
          absl::StrCat(chat->key,
                       ": chat records need a tokenizer.json, whose special "
                       "tokens their template writes, but data.tokenizer ",
                       files_.name, " is none; name the folder of the model"));
    }
    if (!options_.data.chat_template.empty() &&
        !FileExists(options_.data.chat_template)) {
      return absl::NotFoundError(absl::StrCat(
          "data.chat_template: there is no file ", options_.data.chat_template,
          "; name another, or leave it out to take the tokenizer's own"));
    }
    const std::string folder =
        std::filesystem::path(files_.name).parent_path().string();
    ASSIGN_OR_RETURN(chat_files_, ReadChatFiles(folder.empty() ? "." : folder,
                                                options_.data.chat_template));
    return absl::OkStatus();
  }

  absl::Status TrainInto(const std::string& folder) {
    RETURN_IF_ERROR(MakeDirectories(folder));
    absl::StatusOr<FileLock> lock =
        FileLock::Acquire(folder + ".lock", absl::ZeroDuration());
    if (absl::IsDeadlineExceeded(lock.status())) {
      Report(PrepareStage::kWaiting, 0);
      lock = FileLock::Acquire(folder + ".lock", absl::InfiniteDuration());
    }
    RETURN_IF_ERROR(lock.status());
    // Another process may have done it while this one waited.
    if (FileExists(files_.name)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::vector<std::string> sample,
                     SampleText(record_sources_, [this](int64_t done_bytes) {
                       Report(PrepareStage::kReading, done_bytes);
                     }));
    Report(PrepareStage::kTrainingTokenizer, 0);
    ASSIGN_OR_RETURN(const std::string model,
                     TrainTokenizer(sample, options_.vocab_size));
    has_trained_ = true;
    return WriteFileAtomically(files_.name, model);
  }

  std::string FolderOf(const DataSource& source) const {
    Hasher hasher;
    hasher.AddNumber(kCacheVersion);
    hasher.AddNumber(options_.vocab_size);
    hasher.AddNumber(options_.shard_bytes);
    hasher.AddString(files_.content);
    if (!files_.end_of_document.empty()) {
      hasher.AddString(files_.end_of_document);
    }
    AddFiles(source, &hasher);
    if (source.has_samples()) {
      for (const std::string& part :
           {source.kind, source.train_on, chat_files_.content,
            options_.data.chat_date}) {
        hasher.AddString(part);
      }
      // Changes with what becomes of their records.
      if (source.is_preference()) hasher.AddNumber(kPairsVersion);
    }
    return absl::StrFormat("%s/data/%016x", cache_, hasher.Digest());
  }

  absl::Status Convert(const DataSource& source, PreparedSource* prepared,
                       Hasher* hasher) {
    const std::string folder = FolderOf(source);
    const std::string kept_tokenizer = absl::StrCat(
        folder, IsTokenizerJson(files_.content) ? "/tokenizer.json"
                                                : "/tokenizer.model");
    absl::StatusOr<Converted> converted = LoadConverted(folder);
    if (!converted.ok() || !FileExists(kept_tokenizer)) {
      ASSIGN_OR_RETURN(converted, Encode(source, folder));
      RETURN_IF_ERROR(WriteShared(folder, kept_tokenizer, files_.content));
    }
    done_bytes_ += source.num_bytes();
    data_.tokenizer_path = kept_tokenizer;
    data_.end_of_document = files_.end_of_document;
    prepared->prefixes = converted->prefixes;
    prepared->num_tokens = converted->num_tokens;
    prepared->num_documents = converted->num_documents;
    hasher->AddNumber(static_cast<int64_t>(converted->fingerprint));
    return AddNotes(source, *converted);
  }

  std::unique_ptr<RecordEncoder> MakeEncoder(const DataSource& source) const {
    if (!source.has_samples()) {
      return std::make_unique<TextEncoder>(tokenizer_.get(), source.column);
    }
    const ChatEncoderOptions options = {.tokenizer = tokenizer_.get(),
                                        .files = &chat_files_,
                                        .column = source.column,
                                        .train_on = source.train_on,
                                        .date = options_.data.chat_date};
    if (source.is_preference()) {
      return std::make_unique<PreferenceEncoder>(options);
    }
    return std::make_unique<ChatEncoder>(options);
  }

  absl::StatusOr<Converted> Encode(const DataSource& source,
                                   const std::string& folder) {
    if (tokenizer_ == nullptr) {
      ASSIGN_OR_RETURN(tokenizer_,
                       Tokenizer::FromFiles(files_, options_.vocab_size));
    }
    return ConvertSource(
        source, *MakeEncoder(source),
        {.folder = folder,
         .vocab_size = options_.vocab_size,
         .num_threads = options_.num_threads,
         .max_broken = options_.data.broken_records,
         .shard_bytes = options_.shard_bytes,
         .progress =
             [this](int64_t bytes) {
               Report(PrepareStage::kEncoding, done_bytes_ + bytes);
             },
         .waiting = [this] { Report(PrepareStage::kWaiting, 0); }});
  }

  // Adds what a run says about the data. The limit of broken records holds for
  // all sources together, also for those that come from the cache.
  absl::Status AddNotes(const DataSource& source, const Converted& converted) {
    data_.num_shards_made += converted.num_shards_made;
    data_.num_empty += converted.num_empty;
    const TextSkips& skips = converted.skips;
    data_.skips.unreadable += skips.unreadable;
    data_.skips.binary += skips.binary;
    data_.skips.invalid_utf8 += skips.invalid_utf8;
    data_.skips.empty += skips.empty;
    if (data_.skips.example.empty()) data_.skips.example = skips.example;
    if (!source.unmatched.empty()) {
      data_.unmatched.push_back(
          DescribeUnmatched(source.unmatched, source.key));
    }
    if (converted.broken.count == 0) return absl::OkStatus();
    const int64_t count = data_.broken.count + converted.broken.count;
    if (data_.broken.count == 0) data_.broken = converted.broken;
    data_.broken.count = count;
    if (count <= options_.data.broken_records) return absl::OkStatus();
    return TooManyBroken(source.key, converted.broken, count,
                         options_.data.broken_records);
  }

  static absl::Status OpenIndexed(const DataSource& source,
                                  PreparedSource* prepared, Hasher* hasher) {
    for (const std::string& path : source.indexed) {
      ASSIGN_OR_RETURN(const IndexedDataset dataset,
                       IndexedDataset::Open(path));
      prepared->num_tokens += dataset.num_tokens();
      prepared->num_documents += dataset.num_documents();
      prepared->prefixes.push_back(IndexedPrefix(path));
      hasher->AddNumber(static_cast<int64_t>(dataset.type()));
      hasher->AddNumber(dataset.num_tokens());
      for (int64_t i = 0; i < dataset.num_documents(); ++i) {
        hasher->AddNumber(dataset.DocumentBegin(i));
      }
    }
    return absl::OkStatus();
  }

  const std::vector<DataSource> sources_;
  const PrepareOptions& options_;
  const std::string cache_;
  std::vector<DataSource> record_sources_;  // Those that need the tokenizer.
  int64_t total_bytes_ = 0;
  int64_t done_bytes_ = 0;  // In the sources before.
  TokenizerFiles files_;
  ChatFiles chat_files_;                  // Read where a source is of chat.
  std::unique_ptr<Tokenizer> tokenizer_;  // Made when it is needed.
  bool has_trained_ = false;
  PreparedData data_;
};

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

std::vector<std::vector<std::string>> PrefixesBySource(
    const PreparedData& data) {
  std::vector<std::vector<std::string>> prefixes;
  for (const PreparedSource& source : data.sources) {
    prefixes.push_back(source.prefixes);
  }
  return prefixes;
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
  ASSIGN_OR_RETURN(std::vector<DataSource> sources, FindSources(options.data));
  return Preparation(std::move(sources), options).Run();
}

}  // namespace millrace
