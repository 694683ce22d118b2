#include "fault/moved_files.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {

MovedFiles::MovedFiles(std::string from, std::string to)
    : from_(std::move(from)), to_(std::move(to)) {}

absl::StatusOr<std::string> MovedFiles::Moved(const std::string& path) const {
  if (path == from_ || absl::StartsWith(path, from_ + "/")) {
    return to_ + path.substr(from_.size());
  }
  return absl::NotFoundError(
      absl::StrCat(path, " is not in ", from_, ", which ", to_, " stands for"));
}

absl::Status MovedFiles::Refused(const std::string& path) const {
  return absl::PermissionDeniedError(
      absl::StrCat("failed to change ", path, ": ", to_, " is only read"));
}

absl::StatusOr<std::unique_ptr<WritableFile>> MovedFiles::Create(
    const std::string& path) {
  return Refused(path);
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> MovedFiles::Open(
    const std::string& path) {
  ASSIGN_OR_RETURN(const std::string moved, Moved(path));
  return PosixFileSystem()->Open(moved);
}

absl::Status MovedFiles::Rename(const std::string& from,
                                const std::string& /*to*/) {
  return Refused(from);
}

absl::Status MovedFiles::SyncDirectory(const std::string& path) {
  return Refused(path);
}

absl::Status MovedFiles::MakeDirectories(const std::string& path) {
  return Refused(path);
}

absl::Status MovedFiles::Remove(const std::string& path) {
  return Refused(path);
}

bool MovedFiles::Exists(const std::string& path) {
  const absl::StatusOr<std::string> moved = Moved(path);
  return moved.ok() && PosixFileSystem()->Exists(*moved);
}

absl::StatusOr<std::vector<std::string>> MovedFiles::List(
    const std::string& path) {
  ASSIGN_OR_RETURN(const std::string moved, Moved(path));
  return PosixFileSystem()->List(moved);
}

}  // namespace millrace
