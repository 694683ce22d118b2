#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"

namespace millrace {

absl::StatusOr<FileLock> FileLock::Acquire(const std::string& path,
                                           absl::Duration timeout) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) {
    const int error = errno;
    const std::string message =
        absl::StrCat("failed to open ", path, ": ", strerror(error));
    return error == EACCES || error == EPERM || error == EROFS
               ? absl::PermissionDeniedError(message)
               : absl::InternalError(message);
  }
  FileLock lock(fd);
  const absl::Time deadline = MonotonicNow() + timeout;
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return absl::InternalError(
          absl::StrCat("failed to lock ", path, ": ", strerror(errno)));
    }
    if (MonotonicNow() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(path, " is locked by another process for more than ",
                       absl::FormatDuration(timeout)));
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  return lock;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

FileLock::FileLock(FileLock&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

}  // namespace millrace
