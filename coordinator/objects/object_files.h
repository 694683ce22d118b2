// Objects of S3-compatible stores as a file system: s3://BUCKET/KEY is a file,
// and what has "KEY/" before it lies in the folder KEY.

#ifndef MILLRACE_COORDINATOR_OBJECTS_OBJECT_FILES_H_
#define MILLRACE_COORDINATOR_OBJECTS_OBJECT_FILES_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/objects/credentials.h"
#include "coordinator/objects/object_store.h"
#include "fault/file_system.h"

namespace millrace {

struct ObjectFilesOptions {
  ObjectStorePlace place;  // What is empty, the environment says.
  Environment environment = ProcessEnvironment();
  absl::Duration patience = absl::Seconds(60);  // As in ObjectStoreOptions.
};

// Asks for credentials and connects when it is first used. Thread-safe. Errors
// are those of ObjectStore and FindCredentials().
//
// An object appears whole or not at all: a file that is written is there once
// Sync() or Close() has returned, and nothing can be appended after that.
// Folders exist as long as something is in them; making and syncing them does
// nothing. Stores must show at once what was written, as Amazon's does since
// 2020.
class ObjectFiles : public FileSystem {
 public:
  explicit ObjectFiles(ObjectFilesOptions options);
  ~ObjectFiles() override;

  // The bucket of an s3:// path.
  absl::StatusOr<std::shared_ptr<ObjectStore>> StoreOf(const std::string& path);

  // Ends calls that are under way, and all later ones. Returns at once.
  void Abort();

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(
      const std::string& path) override;
  // Copies the object, which has at most 1 GiB, and then removes it. Aborted if
  // somebody else writes the new name meanwhile, where the store can tell.
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status MakeDirectories(const std::string& path) override;
  // Also abandons the uploads of writers that died, if it is a folder's.
  absl::Status Remove(const std::string& path) override;
  // True where the store does not tell, so that the next call says why.
  bool Exists(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override;

 private:
  const ObjectFilesOptions options_;
  std::mutex mutex_;  // Guards what follows.
  bool aborted_ = false;
  std::map<std::string, std::shared_ptr<ObjectStore>> stores_;  // By bucket.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_OBJECTS_OBJECT_FILES_H_
