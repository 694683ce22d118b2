// Which paths the names that others ask for stand for, and the answers to their
// calls. No connection is needed for it.

#ifndef MILLRACE_COORDINATOR_FILES_SERVED_FILES_H_
#define MILLRACE_COORDINATOR_FILES_SERVED_FILES_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
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

  using KeepCall =
      std::function<protocol::KeepAnswer(const protocol::KeepRequest&)>;
  // Who keeps the coordinator's log on this host. Nobody does before.
  void KeepLog(KeepCall keep);
  // Unimplemented where nobody does.
  absl::StatusOr<protocol::KeepAnswer> Keep(
      const protocol::KeepRequest& request) const;

  // Coordinators of earlier terms change nothing any more once this returns.
  void RefuseTermsBelow(int64_t term);
  // While the lock that it returns is held, the coordinator of that term may
  // rename and remove. Aborted if there is a later one.
  absl::StatusOr<std::shared_lock<std::shared_mutex>> AllowTerm(
      int64_t term) const;

 private:
  struct Entry {
    std::string path;
    bool writable;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;  // By name.
  KeepCall keep_;
  mutable std::shared_mutex term_mutex_;
  int64_t least_term_ = 0;
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
