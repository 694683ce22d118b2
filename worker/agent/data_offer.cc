#include "worker/agent/data_offer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file_lock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/files/remote_files.h"
#include "fault/file_system.h"
#include "worker/agent/data_facts.h"
#include "worker/data/hasher.h"
#include "worker/data/sample_batches.h"

namespace millrace {
namespace {

using protocol::DataOffer;

constexpr char kServedName[] = "data";
// A source that is away for longer than that is gone.
constexpr absl::Duration kRetry = absl::Seconds(60);

// Hashes the first `num_bytes` of a file.
absl::Status AddFileTo(Hasher* hasher, const std::string& path,
                       int64_t num_bytes) {
  ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                   PosixFileSystem()->Open(path));
  std::string piece;
  for (int64_t begin = 0; begin < num_bytes; begin += kMaxFilePieceBytes) {
    piece.resize(
        static_cast<size_t>(std::min(kMaxFilePieceBytes, num_bytes - begin)));
    RETURN_IF_ERROR(
        file->Read(begin, static_cast<int64_t>(piece.size()), piece.data()));
    hasher->Add(piece.data(), piece.size());
  }
  return absl::OkStatus();
}

// The token files of a prefix: ids, and of chat which of them are trained.
absl::StatusOr<DataOffer::Prefix> OfferPrefix(const std::string& prefix) {
  DataOffer::Prefix offered;
  const std::string trained =
      TrainedPrefix(prefix).substr(prefix.size());  // ".trained", say.
  for (const std::string& suffix : {std::string(".bin"), std::string(".idx"),
                                    trained + ".bin", trained + ".idx"}) {
    const std::string path = prefix + suffix;
    const absl::StatusOr<std::unique_ptr<RandomAccessFile>> file =
        PosixFileSystem()->Open(path);
    if (absl::IsNotFound(file.status()) && suffix.find(trained) == 0) continue;
    RETURN_IF_ERROR(file.status());
    DataOffer::File* entry = offered.add_files();
    entry->set_suffix(suffix);
    entry->set_bytes((*file)->size());
    Hasher hasher;
    RETURN_IF_ERROR(AddFileTo(&hasher, path, entry->bytes()));
    entry->set_hash(hasher.Digest());
  }
  return offered;
}

absl::Status OfferPrefixes(const std::vector<std::string>& prefixes,
                           DataOffer::Source* source) {
  for (const std::string& prefix : prefixes) {
    ASSIGN_OR_RETURN(*source->add_prefixes(), OfferPrefix(prefix));
  }
  return absl::OkStatus();
}

// Calls `call` with every prefix of the offer, in order.
absl::Status ForEachPrefix(
    const DataOffer& offer,
    const std::function<absl::Status(const DataOffer::Prefix&)>& call) {
  for (const auto* sources : {&offer.training(), &offer.evaluation()}) {
    for (const DataOffer::Source& source : *sources) {
      for (const DataOffer::Prefix& prefix : source.prefixes()) {
        RETURN_IF_ERROR(call(prefix));
      }
    }
  }
  return absl::OkStatus();
}

uint64_t HashOfOffer(const DataOffer& offer) {
  Hasher hasher;
  hasher.AddNumber(static_cast<int64_t>(offer.facts().fingerprint()));
  static_cast<void>(ForEachPrefix(offer, [&](const DataOffer::Prefix& prefix) {
    for (const DataOffer::File& file : prefix.files()) {
      hasher.AddString(file.suffix());
      hasher.AddNumber(file.bytes());
      hasher.AddNumber(static_cast<int64_t>(file.hash()));
    }
    return absl::OkStatus();
  }));
  return hasher.Digest();
}

// The data that the offer describes, in files of those prefixes.
PreparedJobData DataOf(const DataOffer& offer,
                       const std::vector<std::string>& prefixes) {
  PreparedJobData data;
  data.offer = offer;
  data.document_length = offer.facts().document_length();
  data.training.num_tokens = offer.facts().num_tokens();
  data.training.num_documents = offer.facts().num_documents();
  data.training.fingerprint = offer.facts().fingerprint();
  auto next = prefixes.begin();
  for (const DataOffer::Source& source : offer.training()) {
    PreparedSource prepared = {.key = source.key(),
                               .name = source.name(),
                               .weight = source.weight(),
                               .num_tokens = source.num_tokens(),
                               .num_documents = source.num_documents()};
    prepared.prefixes.assign(next, next + source.prefixes_size());
    next += source.prefixes_size();
    data.training.sources.push_back(std::move(prepared));
  }
  for (const DataOffer::Source& source : offer.evaluation()) {
    EvaluationSet set = {.name = source.name()};
    set.prefixes.assign(next, next + source.prefixes_size());
    next += source.prefixes_size();
    data.evaluation.push_back(std::move(set));
  }
  return data;
}

// The prefixes of `data`, in the offer's order.
std::vector<std::string> PrefixesOf(const PreparedJobData& data) {
  std::vector<std::string> prefixes;
  for (const PreparedSource& source : data.training.sources) {
    prefixes.insert(prefixes.end(), source.prefixes.begin(),
                    source.prefixes.end());
  }
  for (const EvaluationSet& set : data.evaluation) {
    prefixes.insert(prefixes.end(), set.prefixes.begin(), set.prefixes.end());
  }
  return prefixes;
}

absl::Status WriteError(const std::string& path) {
  const std::string message =
      absl::StrCat("cannot write ", path, ": ", strerror(errno));
  return errno == ENOSPC || errno == EDQUOT
             ? absl::ResourceExhaustedError(message)
             : absl::InternalError(message);
}

// A file that grows at its end and is durable once closed well.
class GrowingFile {
 public:
  explicit GrowingFile(std::string path)
      : path_(std::move(path)),
        fd_(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                 0600)) {}
  ~GrowingFile() {
    if (fd_ >= 0) close(fd_);
  }
  absl::Status Append(absl::string_view bytes) const {
    while (fd_ >= 0 && !bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) break;
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return bytes.empty() && fd_ >= 0 ? absl::OkStatus() : WriteError(path_);
  }
  absl::Status Sync() const {
    return fd_ >= 0 && fsync(fd_) == 0 ? absl::OkStatus() : WriteError(path_);
  }

 private:
  const std::string path_;
  const int fd_;
};

class Fetcher {
 public:
  Fetcher(const DataFetch& fetch, std::string folder)
      : fetch_(fetch), folder_(std::move(folder)) {}

  absl::StatusOr<std::vector<std::string>> Run() {
    RETURN_IF_ERROR(ConnectSources());
    for (const DataOffer::File& file : Files()) total_ += file.bytes();
    std::vector<std::string> prefixes;
    RETURN_IF_ERROR(ForEachPrefix(
        fetch_.order.offer(), [&](const DataOffer::Prefix& prefix) {
          prefixes.push_back(
              absl::StrFormat("%s/tokens-%05d", folder_, prefixes.size()));
          for (const DataOffer::File& file : prefix.files()) {
            RETURN_IF_ERROR(FetchFile(file, prefixes.back() + file.suffix()));
            ++file_idx_;
          }
          return absl::OkStatus();
        }));
    return prefixes;
  }

 private:
  std::vector<DataOffer::File> Files() const {
    std::vector<DataOffer::File> files;
    static_cast<void>(ForEachPrefix(
        fetch_.order.offer(), [&](const DataOffer::Prefix& prefix) {
          files.insert(files.end(), prefix.files().begin(),
                       prefix.files().end());
          return absl::OkStatus();
        }));
    return files;
  }

  absl::Status ConnectSources() {
    for (const protocol::FileHost& host : fetch_.order.from()) {
      // Only the last one that is tried is waited for.
      const bool is_last = &host == &*fetch_.order.from().rbegin();
      ASSIGN_OR_RETURN(std::unique_ptr<RemoteFiles> source,
                       RemoteFiles::Create(
                           {.host = host.host(),
                            .address = host.address(),
                            .port = host.port(),
                            .secret = fetch_.secret,
                            .directory = kServedName,
                            .name = kServedName,
                            .retry = is_last ? kRetry : absl::ZeroDuration()}));
      sources_.push_back(std::move(source));
    }
    return absl::OkStatus();
  }

  // The next piece, from whichever source has it.
  absl::Status Read(int64_t offset, std::string* piece) {
    const std::string name = absl::StrCat(kServedName, "/", file_idx_);
    absl::Status status = absl::UnavailableError("no host has the data");
    for (size_t tried = 0; tried < sources_.size(); ++tried) {
      absl::StatusOr<std::unique_ptr<RandomAccessFile>> file =
          sources_[source_idx_]->Open(name);
      status = file.ok()
                   ? (*file)->Read(offset, static_cast<int64_t>(piece->size()),
                                   piece->data())
                   : file.status();
      if (status.ok()) return status;
      source_idx_ = (source_idx_ + 1) % sources_.size();
    }
    return status;
  }

  absl::Status FetchFile(const DataOffer::File& file, const std::string& path) {
    const auto done = PosixFileSystem()->Open(path);
    if (done.ok() && (*done)->size() == file.bytes()) {
      done_ += file.bytes();
      return absl::OkStatus();
    }
    const std::string partial = path + ".partial";
    const auto begun = PosixFileSystem()->Open(partial);
    int64_t begin = begun.ok() ? (*begun)->size() : 0;
    Hasher hasher;
    if (begin > file.bytes()) {
      RETURN_IF_ERROR(PosixFileSystem()->Remove(partial));
      begin = 0;
    }
    if (begin > 0) RETURN_IF_ERROR(AddFileTo(&hasher, partial, begin));
    done_ += begin;
    const GrowingFile out(partial);
    std::string piece;
    while (begin < file.bytes()) {
      piece.resize(static_cast<size_t>(
          std::min(kMaxFilePieceBytes, file.bytes() - begin)));
      RETURN_IF_ERROR(Read(begin, &piece));
      RETURN_IF_ERROR(out.Append(piece));
      hasher.Add(piece.data(), piece.size());
      begin += static_cast<int64_t>(piece.size());
      done_ += static_cast<int64_t>(piece.size());
      if (fetch_.progress) fetch_.progress(done_, total_);
    }
    if (hasher.Digest() != file.hash()) {
      RETURN_IF_ERROR(PosixFileSystem()->Remove(partial));
      return absl::DataLossError(absl::StrFormat(
          "%s came with fingerprint %016x, and %016x was offered; did the "
          "files change over there? Start the job again",
          path, hasher.Digest(), file.hash()));
    }
    RETURN_IF_ERROR(out.Sync());
    return PosixFileSystem()->Rename(partial, path);
  }

  const DataFetch& fetch_;
  const std::string folder_;
  std::vector<std::unique_ptr<RemoteFiles>> sources_;
  size_t source_idx_ = 0;  // Which answered last.
  int64_t file_idx_ = 0;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

}  // namespace

absl::StatusOr<DataOffer> OfferOf(const PreparedJobData& data) {
  DataOffer offer;
  ASSIGN_OR_RETURN(*offer.mutable_facts(), FactsOf(data));
  for (const PreparedSource& prepared : data.training.sources) {
    DataOffer::Source* source = offer.add_training();
    source->set_key(prepared.key);
    source->set_name(prepared.name);
    source->set_weight(prepared.weight);
    source->set_num_tokens(prepared.num_tokens);
    source->set_num_documents(prepared.num_documents);
    RETURN_IF_ERROR(OfferPrefixes(prepared.prefixes, source));
  }
  for (const EvaluationSet& set : data.evaluation) {
    DataOffer::Source* source = offer.add_evaluation();
    source->set_name(set.name);
    RETURN_IF_ERROR(OfferPrefixes(set.prefixes, source));
  }
  return offer;
}

void ServeData(const PreparedJobData& data, FileServer* server) {
  const std::vector<std::string> prefixes = PrefixesOf(data);
  size_t prefix_idx = 0;
  int64_t file_idx = 0;
  static_cast<void>(
      ForEachPrefix(*data.offer, [&](const DataOffer::Prefix& prefix) {
        for (const DataOffer::File& file : prefix.files()) {
          server->Serve(absl::StrCat(kServedName, "/", file_idx++),
                        prefixes[prefix_idx] + file.suffix(),
                        /*writable=*/false);
        }
        ++prefix_idx;
        return absl::OkStatus();
      }));
}

absl::StatusOr<PreparedJobData> FetchData(const DataFetch& fetch) {
  const std::string folder = absl::StrCat(
      fetch.cache_directory.empty() ? DefaultCacheDirectory()
                                    : fetch.cache_directory,
      "/fetched/",
      absl::Hex(HashOfOffer(fetch.order.offer()), absl::kZeroPad16));
  RETURN_IF_ERROR(MakeDirectories(folder));
  ASSIGN_OR_RETURN(
      const FileLock lock,
      FileLock::Acquire(folder + ".lock", absl::InfiniteDuration()));
  Fetcher fetcher(fetch, folder);
  ASSIGN_OR_RETURN(const std::vector<std::string> prefixes, fetcher.Run());
  return DataOf(fetch.order.offer(), prefixes);
}

}  // namespace millrace
