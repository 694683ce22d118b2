#include "coordinator/metrics/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

absl::Status FileError(const char* what, const std::string& path) {
  return absl::InternalError(
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

}  // namespace

AppendFile::AppendFile(std::string path, int fd)
    : path_(std::move(path)), fd_(fd) {}
AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}
AppendFile::~AppendFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<AppendFile> AppendFile::Open(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty()) RETURN_IF_ERROR(MakeDirectories(folder));
  // Never waits for the reader of a pipe that somebody left there.
  const int fd =
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK,
           0666);
  if (fd < 0) return FileError("open", path);
  struct stat found {};
  if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a regular file"));
  }
  return AppendFile(path, fd);
}

absl::Status AppendFile::Append(absl::string_view record) {
  struct stat before {};
  if (fstat(fd_, &before) != 0) return FileError("look at", path_);
  size_t written = 0;
  while (written < record.size()) {
    const ssize_t count =
        write(fd_, record.data() + written, record.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const absl::Status status = FileError("write to", path_);
      if (written > 0 && ftruncate(fd_, before.st_size) != 0) {
        return FileError("take a part of a record back from", path_);
      }
      return status;
    }
    written += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace millrace
