// Whole small files, with errors that name the path. Checkpoints go through
// fault/file_system.h instead, which can be made to fail at any point.

#ifndef MILLRACE_BASE_FILES_H_
#define MILLRACE_BASE_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

// A file that people write (a job, a profile, a list of settings) is larger
// than this only by mistake.
inline constexpr int64_t kMaxWrittenBytes = int64_t{64} << 20;
// The same for what a run leaves: metrics and events grow with every step.
inline constexpr int64_t kMaxRecordBytes = int64_t{2} << 30;

// Reads a whole regular file. Never waits for a writer and never holds more
// than `max_bytes`. NotFound if there is no such file; InvalidArgument if it is
// a folder, a device, a pipe or a socket, or holds more than `max_bytes`;
// PermissionDenied or Internal otherwise.
absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     int64_t max_bytes = kMaxWrittenBytes);

// The last `max_bytes` of a regular file, or all of it if it holds less. Errors
// as ReadFile()'s.
absl::StatusOr<std::string> ReadEndOfFile(const std::string& path,
                                          int64_t max_bytes);

// Opens a regular file for reading, under the same rules; the caller closes the
// descriptor.
absl::StatusOr<int> OpenRegularFile(const std::string& path);

// While it lives, files and folders that this process and its children create
// are the user's alone: folders 0700, files 0600. Commands that leave a run or
// a checkpoint hold one from start to end; files that the user names as outputs
// are written without one and follow the user's umask. The umask belongs to the
// process: begin and end it while there is one thread.
class PrivateFiles {
 public:
  PrivateFiles();
  ~PrivateFiles();
  PrivateFiles(const PrivateFiles&) = delete;
  PrivateFiles& operator=(const PrivateFiles&) = delete;

 private:
  const unsigned previous_;
};

// Writes beside `path` and renames into place, so that readers see the old
// content or the new, never a part. A file that is replaced keeps its mode.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view content);

// Creates `path` and its parents; existing folders are fine.
absl::Status MakeDirectories(const std::string& path);

bool FileExists(const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_BASE_FILES_H_
