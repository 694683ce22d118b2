// A file that grows by whole records. A record that does not fit on the disk
// leaves no part of itself behind, so that readers never meet a torn one in the
// middle and later records can follow when there is space again.

#ifndef MILLRACE_COORDINATOR_METRICS_APPEND_FILE_H_
#define MILLRACE_COORDINATOR_METRICS_APPEND_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

class AppendFile {
 public:
  // Creates the file and its folders where there are none.
  static absl::StatusOr<AppendFile> Open(const std::string& path);
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  ~AppendFile();

  // All of `record` or nothing. The error names the path.
  absl::Status Append(absl::string_view record);

 private:
  AppendFile(std::string path, int fd);

  std::string path_;
  int fd_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_METRICS_APPEND_FILE_H_
