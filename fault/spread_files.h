// One folder of checkpoints that lies on the disks of several hosts, as one
// file system. Every file is written here and on the mirrors; a file is read
// from wherever it is.

#ifndef MILLRACE_FAULT_SPREAD_FILES_H_
#define MILLRACE_FAULT_SPREAD_FILES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/file_system.h"

namespace millrace {

// Thread-safe if its parts are.
//
// A change is made on this host and on all mirrors at once, and fails with the
// first error of any of them; the others may have made it all the same. A file
// is opened where it is found first: here, on the mirrors, on the sources. What
// cannot be reached has no files: the error says so if the file is nowhere
// else. List() joins what is listed, and is OK if any host lists the folder.
class SpreadFiles : public FileSystem {
 public:
  // `here` is borrowed.
  SpreadFiles(FileSystem* here,
              std::vector<std::shared_ptr<FileSystem>> mirrors,
              std::vector<std::shared_ptr<FileSystem>> sources);

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
  const std::vector<std::shared_ptr<FileSystem>> mirrors_;
  const std::vector<std::shared_ptr<FileSystem>> sources_;
  std::vector<FileSystem*> written_;  // This host's first.
  std::vector<FileSystem*> read_;     // All.
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_SPREAD_FILES_H_
