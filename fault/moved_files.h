// A folder of this machine under another name, for reading: what one host wrote
// in /ckpt may have been brought to /from_node2/ckpt.

#ifndef MILLRACE_FAULT_MOVED_FILES_H_
#define MILLRACE_FAULT_MOVED_FILES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/file_system.h"

namespace millrace {

// Paths in the folder `from` stand for those in `to`; nothing else is there.
// Every change is refused with PermissionDenied. Thread-safe.
class MovedFiles : public FileSystem {
 public:
  // Both without "/" at the end.
  MovedFiles(std::string from, std::string to);

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(
      const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status MakeDirectories(const std::string& path) override;
  absl::Status Remove(const std::string& path) override;
  bool Exists(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override;

 private:
  // NotFound for a path outside of the folder.
  absl::StatusOr<std::string> Moved(const std::string& path) const;
  absl::Status Refused(const std::string& path) const;

  const std::string from_, to_;
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_MOVED_FILES_H_
