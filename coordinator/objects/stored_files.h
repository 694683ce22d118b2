// Files wherever a path of a job says: s3:// paths are objects of a bucket, all
// others are files of this machine.

#ifndef MILLRACE_COORDINATOR_OBJECTS_STORED_FILES_H_
#define MILLRACE_COORDINATOR_OBJECTS_STORED_FILES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/objects/object_files.h"
#include "fault/file_system.h"
#include "planner/job/job.h"

namespace millrace {

// Thread-safe. Errors are those of ObjectFiles and of PosixFileSystem().
class StoredFiles : public FileSystem {
 public:
  explicit StoredFiles(ObjectFilesOptions options);

  ObjectFiles& objects() { return objects_; }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(
      const std::string& path) override;
  // Both in the same place.
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status MakeDirectories(const std::string& path) override;
  absl::Status Remove(const std::string& path) override;
  bool Exists(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override;

 private:
  FileSystem& For(const std::string& path);
  ObjectFiles objects_;
};

// Those of a job, by its keys `checkpoint.endpoint` and `checkpoint.region`.
std::shared_ptr<StoredFiles> StoredFilesOf(const CheckpointSpec& checkpoint);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_OBJECTS_STORED_FILES_H_
