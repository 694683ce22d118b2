#include "coordinator/objects/stored_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/job/object_path.h"

namespace millrace {

StoredFiles::StoredFiles(ObjectFilesOptions options)
    : objects_(std::move(options)) {}

FileSystem& StoredFiles::For(const std::string& path) {
  return IsObjectPath(path) ? static_cast<FileSystem&>(objects_)
                            : *PosixFileSystem();
}

absl::StatusOr<std::unique_ptr<WritableFile>> StoredFiles::Create(
    const std::string& path) {
  return For(path).Create(path);
}
absl::StatusOr<std::unique_ptr<RandomAccessFile>> StoredFiles::Open(
    const std::string& path) {
  return For(path).Open(path);
}
absl::Status StoredFiles::Rename(const std::string& from,
                                 const std::string& to) {
  if (IsObjectPath(from) != IsObjectPath(to)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot rename ", from, " to ", to,
                     ": one is an object, and one a file of this machine"));
  }
  return For(from).Rename(from, to);
}
absl::Status StoredFiles::SyncDirectory(const std::string& path) {
  return For(path).SyncDirectory(path);
}
absl::Status StoredFiles::MakeDirectories(const std::string& path) {
  return For(path).MakeDirectories(path);
}
absl::Status StoredFiles::Remove(const std::string& path) {
  return For(path).Remove(path);
}
bool StoredFiles::Exists(const std::string& path) {
  return For(path).Exists(path);
}
absl::StatusOr<std::vector<std::string>> StoredFiles::List(
    const std::string& path) {
  return For(path).List(path);
}

std::shared_ptr<StoredFiles> StoredFilesOf(const CheckpointSpec& checkpoint) {
  return std::make_shared<StoredFiles>(ObjectFilesOptions{
      .place = {.endpoint = checkpoint.endpoint, .region = checkpoint.region}});
}

}  // namespace millrace
