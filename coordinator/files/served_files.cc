#include "coordinator/files/served_files.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "coordinator/files/file_server.h"

namespace millrace {
namespace {

using protocol::FileAnswer;
using protocol::FileRequest;

// A connection that has more files open than a writer of checkpoints ever does.
constexpr size_t kMaxWritten = 16;

bool Changes(protocol::FileCall call) {
  switch (call) {
    case protocol::FILE_CALL_OPEN:
    case protocol::FILE_CALL_READ:
    case protocol::FILE_CALL_EXISTS:
    case protocol::FILE_CALL_LIST:
      return false;
    default:
      return true;
  }
}

// Whether every part of the path below a folder is a plain name.
bool StaysBelow(absl::string_view rest) {
  for (const absl::string_view part : absl::StrSplit(rest, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return rest.find('\0') == absl::string_view::npos;
}

}  // namespace

void ServedFiles::Serve(const std::string& name, const std::string& path,
                        bool writable) {
  std::lock_guard<std::mutex> lock(mutex_);
  entries_[name] = {path, writable};
}

absl::StatusOr<std::string> ServedFiles::PathOf(const std::string& name,
                                                bool changes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  // The longest name that was given out and holds this one.
  size_t end = name.size();
  while (true) {
    const auto found = entries_.find(name.substr(0, end));
    if (found != entries_.end()) {
      const std::string rest = name.substr(end);
      if (!rest.empty() && !StaysBelow(absl::string_view(rest).substr(1))) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", name, "' leads out of its folder"));
      }
      if (changes && !found->second.writable) {
        return absl::PermissionDeniedError(
            absl::StrCat("'", name, "' may only be read by other hosts"));
      }
      return found->second.path + rest;
    }
    end = end == 0 ? std::string::npos : name.rfind('/', end - 1);
    if (end == std::string::npos) {
      return absl::NotFoundError(
          absl::StrCat("this host serves nothing of the name '", name, "'"));
    }
  }
}

void ServedFiles::KeepLog(KeepCall keep) {
  std::lock_guard<std::mutex> lock(mutex_);
  keep_ = std::move(keep);
}

absl::StatusOr<protocol::KeepAnswer> ServedFiles::Keep(
    const protocol::KeepRequest& request) const {
  KeepCall keep;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    keep = keep_;
  }
  if (keep == nullptr) {
    return absl::UnimplementedError("this host keeps no coordinator's log");
  }
  return keep(request);
}

void ServedFiles::RefuseTermsBelow(int64_t term) {
  std::lock_guard<std::shared_mutex> lock(term_mutex_);
  least_term_ = std::max(least_term_, term);
}

absl::StatusOr<std::shared_lock<std::shared_mutex>> ServedFiles::AllowTerm(
    int64_t term) const {
  std::shared_lock<std::shared_mutex> lock(term_mutex_);
  if (term == 0 || term >= least_term_) return lock;
  return absl::AbortedError(
      absl::StrCat("the coordinator of term ", term,
                   " changes nothing here any more: that of term ", least_term_,
                   " has taken its place"));
}

FileAnswer FileCalls::Answer(const FileRequest& request) {
  FileAnswer answer;
  const absl::Status status = Do(request, &answer);
  if (!status.ok()) {
    answer.Clear();
    answer.set_code(static_cast<int>(status.code()));
    answer.set_message(std::string(status.message()));
  }
  return answer;
}

absl::Status FileCalls::Do(const FileRequest& request, FileAnswer* answer) {
  const protocol::FileCall call = request.call();
  if (call == protocol::FILE_CALL_KEEP) {
    ASSIGN_OR_RETURN(*answer->mutable_keep(), served_.Keep(request.keep()));
    return absl::OkStatus();
  }
  std::shared_lock<std::shared_mutex> allowed;
  if (call == protocol::FILE_CALL_RENAME ||
      call == protocol::FILE_CALL_REMOVE) {
    ASSIGN_OR_RETURN(allowed, served_.AllowTerm(request.term()));
  }
  ASSIGN_OR_RETURN(const std::string path,
                   served_.PathOf(request.name(), Changes(call)));
  switch (call) {
    case protocol::FILE_CALL_OPEN: {
      ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                       files_.Open(path));
      answer->set_size(file->size());
      return absl::OkStatus();
    }
    case protocol::FILE_CALL_READ:
      return Read(request, path, answer);
    case protocol::FILE_CALL_CREATE: {
      if (written_.size() >= kMaxWritten) {
        return absl::ResourceExhaustedError(
            absl::StrCat("more than ", kMaxWritten, " files are written"));
      }
      ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_.Create(path));
      written_[path] = {.file = std::move(file)};
      return absl::OkStatus();
    }
    case protocol::FILE_CALL_APPEND:
      return Append(request, path);
    case protocol::FILE_CALL_SYNC:
    case protocol::FILE_CALL_CLOSE: {
      const auto found = written_.find(path);
      if (found == written_.end()) {
        return absl::UnavailableError(absl::StrCat(
            path, " is not being written over this connection any more"));
      }
      if (call == protocol::FILE_CALL_SYNC) return found->second.file->Sync();
      const absl::Status closed = found->second.file->Close();
      written_.erase(found);
      return closed;
    }
    case protocol::FILE_CALL_RENAME: {
      ASSIGN_OR_RETURN(const std::string to,
                       served_.PathOf(request.to(), /*changes=*/true));
      return files_.Rename(path, to);
    }
    case protocol::FILE_CALL_SYNC_DIRECTORY:
      return files_.SyncDirectory(path);
    case protocol::FILE_CALL_MAKE_DIRECTORIES:
      return files_.MakeDirectories(path);
    case protocol::FILE_CALL_REMOVE:
      return files_.Remove(path);
    case protocol::FILE_CALL_EXISTS:
      answer->set_size(files_.Exists(path) ? 1 : 0);
      return absl::OkStatus();
    case protocol::FILE_CALL_LIST: {
      ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(path));
      for (const std::string& name : names) answer->add_names(name);
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("call ", static_cast<int>(call), " is not known here"));
  }
}

absl::Status FileCalls::Read(const FileRequest& request,
                             const std::string& path, FileAnswer* answer) {
  if (request.num_bytes() < 0 || request.num_bytes() > kMaxFilePieceBytes ||
      request.offset() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a call reads 0 to ", kMaxFilePieceBytes, " bytes, not ",
                     request.num_bytes(), " from ", request.offset()));
  }
  if (read_file_ == nullptr || read_path_ != path) {
    read_file_ = nullptr;
    ASSIGN_OR_RETURN(read_file_, files_.Open(path));
    read_path_ = path;
  }
  std::string& data = *answer->mutable_data();
  data.resize(static_cast<size_t>(request.num_bytes()));
  const absl::Status status =
      read_file_->Read(request.offset(), request.num_bytes(), data.data());
  // The file may have been replaced meanwhile: the next call looks again.
  if (!status.ok()) read_file_ = nullptr;
  return status;
}

absl::Status FileCalls::Append(const FileRequest& request,
                               const std::string& path) {
  const auto found = written_.find(path);
  if (found == written_.end() || found->second.num_bytes != request.offset()) {
    return absl::UnavailableError(absl::StrCat(
        path, " is not being written over this connection any more"));
  }
  found->second.num_bytes += static_cast<int64_t>(request.data().size());
  return found->second.file->Append(
      request.data().data(), static_cast<int64_t>(request.data().size()));
}

}  // namespace millrace
