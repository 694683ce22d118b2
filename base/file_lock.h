// One process at a time: a lock that ends with its holder.

#ifndef MILLRACE_BASE_FILE_LOCK_H_
#define MILLRACE_BASE_FILE_LOCK_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace millrace {

// Holds the advisory lock of a file made for it, which stays: whoever removed
// it could leave two holders. On network file systems that know flock(), other
// hosts wait too.
class FileLock {
 public:
  // Waits for another holder. DeadlineExceeded naming the file if it takes
  // longer than `timeout`; other errors as ReadFile's (base/files.h).
  static absl::StatusOr<FileLock> Acquire(const std::string& path,
                                          absl::Duration timeout);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace millrace

#endif  // MILLRACE_BASE_FILE_LOCK_H_
