// File access of checkpoints behind an interface, so that tests can make any
// write, fsync or rename fail or lose what was not yet durable.

#ifndef MILLRACE_FAULT_FILE_SYSTEM_H_
#define MILLRACE_FAULT_FILE_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

class WritableFile {
 public:
  virtual ~WritableFile() = default;  // Closes it, if nobody has.
  virtual absl::Status Append(const void* data, int64_t num_bytes) = 0;
  // fsync: what was appended survives a crash once this returns.
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  virtual int64_t size() const = 0;
  // Reads exactly `num_bytes`; DataLoss if the file is shorter.
  virtual absl::Status Read(int64_t offset, int64_t num_bytes,
                            void* out) const = 0;
};

// A copy of a file. `host` is empty on this machine.
struct FileCopy {
  std::string host;
  std::unique_ptr<RandomAccessFile> file;
};

// A copy that could not be used, and the host whose copy was read instead.
struct DamagedCopy {
  std::string path;
  std::string host;
  std::string reason;
  std::string used_host;
};

// Errors name the path: NotFound, PermissionDenied, ResourceExhausted if the
// disk is full, Internal otherwise. Changes to a folder (files created, renamed
// or removed, folders made in it) survive a crash only after SyncDirectory() on
// it has returned.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Replaces a file of that name.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(
      const std::string& path) = 0;
  // All copies of the file, first the one that Open() opens. There is one,
  // unless a folder is spread over several disks. Errors are those of Open().
  virtual absl::StatusOr<std::vector<FileCopy>> OpenCopies(
      const std::string& path);
  // Readers tell here of each copy that they passed over.
  virtual void OnDamagedCopy(const DamagedCopy& /*copy*/) {}
  // Within one folder; replaces a file of the new name, atomically.
  virtual absl::Status Rename(const std::string& from,
                              const std::string& to) = 0;
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  virtual absl::Status MakeDirectories(const std::string& path) = 0;
  // A file, or a folder with all it holds; absent is fine.
  virtual absl::Status Remove(const std::string& path) = 0;
  virtual bool Exists(const std::string& path) = 0;
  virtual absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) = 0;  // Names, sorted.
};

// The machine's own file system (POSIX). Never null, lives for ever.
FileSystem* PosixFileSystem();

}  // namespace millrace

#endif  // MILLRACE_FAULT_FILE_SYSTEM_H_
