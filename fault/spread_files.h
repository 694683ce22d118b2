// One folder of checkpoints that lies on the disks of several hosts, as one
// file system. Every file is written here and on the mirrors; a file is read
// from wherever it is, and from another host where one host's copy is damaged.

#ifndef MILLRACE_FAULT_SPREAD_FILES_H_
#define MILLRACE_FAULT_SPREAD_FILES_H_

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/file_system.h"

namespace millrace {

// A host's disk. `host` is for messages.
struct HostDisk {
  std::shared_ptr<FileSystem> files;
  std::string host;
};
// A file system that lives longer, such as PosixFileSystem().
std::shared_ptr<FileSystem> BorrowedFiles(FileSystem* files);

// Thread-safe if its parts are.
//
// A change is made on this host and on all mirrors at once, and fails with the
// first error of any of them; the others may have made it all the same. A file
// is opened where it is found first: here, on the mirrors, on the sources. What
// cannot be reached has no files: the error says so if the file is nowhere
// else. List() joins what is listed, and is OK if any host lists the folder.
class SpreadFiles : public FileSystem {
 public:
  SpreadFiles(HostDisk here, std::vector<HostDisk> mirrors,
              std::vector<HostDisk> sources);

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(
      const std::string& path) override;
  absl::StatusOr<std::vector<FileCopy>> OpenCopies(
      const std::string& path) override;
  void OnDamagedCopy(const DamagedCopy& copy) override;
  // A line for each damaged copy that readers passed over since the last call:
  // "step-00000012/rank-00001.g1.safetensors on node2 is damaged, and node3's
  // copy was read instead: REASON". A copy has one line in the object's life.
  std::vector<std::string> TakeDamagedCopies();
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status MakeDirectories(const std::string& path) override;
  absl::Status Remove(const std::string& path) override;
  bool Exists(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override;

 private:
  std::vector<HostDisk> disks_;       // All, this host's first.
  std::vector<FileSystem*> written_;  // This host's first.
  std::mutex mutex_;                  // Guards what follows.
  std::set<std::pair<std::string, std::string>> damaged_;  // Path and host.
  std::vector<std::string> lines_;
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_SPREAD_FILES_H_
