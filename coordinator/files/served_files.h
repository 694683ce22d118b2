// Which paths the names that others ask for stand for, and the answers to their
// calls. No connection is needed for it.

#ifndef MILLRACE_COORDINATOR_FILES_SERVED_FILES_H_
#define MILLRACE_COORDINATOR_FILES_SERVED_FILES_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/files/files.pb.h"
#include "fault/file_system.h"

namespace millrace {

// Thread-safe.
class ServedFiles {
 public:
  void Serve(const std::string& name, const std::string& path, bool writable);

  // The path of a name. NotFound for a name that was not given out,
  // InvalidArgument for one that leads out of its folder, PermissionDenied if
  // it would be changed and may not.
  absl::StatusOr<std::string> PathOf(const std::string& name,
                                     bool changes) const;

 private:
  struct Entry {
    std::string path;
    bool writable;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;  // By name.
};

// The calls of one connection, one after the other.
class FileCalls {
 public:
  FileCalls(const ServedFiles& served, FileSystem& files)
      : served_(served), files_(files) {}

  protocol::FileAnswer Answer(const protocol::FileRequest& request);

 private:
  absl::Status Do(const protocol::FileRequest& request,
                  protocol::FileAnswer* answer);
  absl::Status Read(const protocol::FileRequest& request,
                    const std::string& path, protocol::FileAnswer* answer);
  absl::Status Append(const protocol::FileRequest& request,
                      const std::string& path);

  struct Written {
    std::unique_ptr<WritableFile> file;
    int64_t num_bytes = 0;
  };
  const ServedFiles& served_;
  FileSystem& files_;
  std::map<std::string, Written> written_;  // Created and not closed, by path.
  std::string read_path_;                   // The file that was read last.
  std::unique_ptr<RandomAccessFile> read_file_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_FILES_SERVED_FILES_H_
