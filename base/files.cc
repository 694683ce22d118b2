#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

absl::Status ErrnoStatus(int error, absl::string_view action,
                         absl::string_view path) {
  const std::string message =
      absl::StrCat("failed to ", action, " ", path, ": ", strerror(error));
  if (error == ENOENT) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) {
    return absl::PermissionDeniedError(message);
  }
  if (error == ENOSPC) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

const char* KindOfFile(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "no file";
}

}  // namespace

absl::StatusOr<int> OpenRegularFile(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for who writes to it.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return ErrnoStatus(errno, "open", path);
  struct stat facts {};
  if (fstat(file, &facts) != 0) {
    const absl::Status status = ErrnoStatus(errno, "look at", path);
    close(file);
    return status;
  }
  if (!S_ISREG(facts.st_mode)) {
    close(file);
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is ", KindOfFile(facts.st_mode),
                     ", a regular file was expected"));
  }
  return file;
}

absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     int64_t max_bytes) {
  ASSIGN_OR_RETURN(const int file, OpenRegularFile(path));
  struct stat facts {};
  int64_t expected = fstat(file, &facts) == 0 ? facts.st_size : 0;
  std::string content;
  absl::Status status;
  // Files of /proc say that they are empty, and others may grow meanwhile: the
  // end is where read() says that it is.
  while (static_cast<int64_t>(content.size()) <= max_bytes &&
         expected <= max_bytes) {
    constexpr int64_t kBlockBytes = int64_t{64} << 10;
    const size_t done = content.size();
    const int64_t left = expected - static_cast<int64_t>(done);
    content.resize(done + static_cast<size_t>(std::max(left, kBlockBytes)));
    const ssize_t count =
        read(file, content.data() + done, content.size() - done);
    const int error = errno;
    content.resize(done + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0) break;
    if (count < 0 && error != EINTR) {
      status = ErrnoStatus(error, "read", path);
      break;
    }
  }
  close(file);
  RETURN_IF_ERROR(status);
  expected = std::max(expected, static_cast<int64_t>(content.size()));
  if (expected > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds ", expected, " bytes or more, at most ",
                     max_bytes, " were expected; is it the right file?"));
  }
  return content;
}

absl::StatusOr<std::string> ReadEndOfFile(const std::string& path,
                                          int64_t max_bytes) {
  ASSIGN_OR_RETURN(const int file, OpenRegularFile(path));
  struct stat facts {};
  const int64_t num_bytes = fstat(file, &facts) == 0 ? facts.st_size : 0;
  int64_t from = std::max<int64_t>(num_bytes - max_bytes, 0);
  std::string content;
  absl::Status status;
  while (from < num_bytes) {
    const size_t done = content.size();
    content.resize(done + static_cast<size_t>(num_bytes - from));
    const ssize_t count = pread(file, content.data() + done,
                                static_cast<size_t>(num_bytes - from), from);
    const int error = errno;
    content.resize(done + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0) break;
    if (count > 0) {
      from += count;
    } else if (error != EINTR) {
      status = ErrnoStatus(error, "read", path);
      break;
    }
  }
  close(file);
  RETURN_IF_ERROR(status);
  return content;
}

PrivateFiles::PrivateFiles() : previous_(umask(S_IRWXG | S_IRWXO)) {
  umask(previous_ | S_IRWXG | S_IRWXO);
}

PrivateFiles::~PrivateFiles() { umask(previous_); }

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view content) {
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  errno = 0;
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.flush();
    if (!out) {
      const absl::Status status = ErrnoStatus(errno, "write", temporary);
      std::remove(temporary.c_str());
      return status;
    }
  }
  struct stat replaced {};
  if (stat(path.c_str(), &replaced) == 0 && S_ISREG(replaced.st_mode)) {
    // Best effort: the file may be another user's in a folder of this one's.
    static_cast<void>(chmod(temporary.c_str(), replaced.st_mode & 0777));
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const absl::Status status = ErrnoStatus(errno, "rename into", path);
    std::remove(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), "create folder", path);
  return absl::OkStatus();
}

bool FileExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace millrace
