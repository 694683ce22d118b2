// A folder that another host of the job serves (file_server.h), as a file
// system.

#ifndef MILLRACE_COORDINATOR_FILES_REMOTE_FILES_H_
#define MILLRACE_COORDINATOR_FILES_REMOTE_FILES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/files/files.pb.h"
#include "fault/file_system.h"

namespace millrace {

// The name of a host's folder of checkpoints.
inline constexpr char kServedCheckpoints[] = "checkpoints";

struct RemoteFilesOptions {
  std::string host;     // For messages: "node2".
  std::string address;  // "10.0.0.2" or "fd00::2".
  int32_t port = 0;
  std::string secret;
  // Paths in this folder stand for names below `name` over there. Both are
  // without "/" at the end.
  std::string directory;
  std::string name;
  // A reader connects again, and asks again, this long after the connection
  // broke. Files that are being written fail at once.
  absl::Duration retry = absl::ZeroDuration();
  // A host that is gone without a farewell is noticed after this long; disks
  // are asked for a few megabytes at a time.
  absl::Duration answer_limit = absl::Seconds(20);
  // The term of the coordinator that asks (files.proto); 0: none does.
  int64_t term = 0;
};

// Connects when it is first used. Thread-safe; one call at a time. Errors begin
// with the host's name and are those of FileSystem over there; Unavailable if
// the host is not reached or does not answer, Aborted after Abort(),
// InvalidArgument for a path outside of the folder. Folders above `directory`
// can be synced, which does nothing: whoever serves it made them.
class RemoteFiles : public FileSystem {
 public:
  // Errors are those of MakeTlsContext().
  static absl::StatusOr<std::unique_ptr<RemoteFiles>> Create(
      RemoteFilesOptions options);
  ~RemoteFiles() override;

  // Asks the keeper of the coordinator's log there, which is no file.
  absl::StatusOr<protocol::KeepAnswer> Keep(
      const protocol::KeepRequest& request);

  // Ends the call under way, and all later ones. Returns at once.
  void Abort();

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(
      const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status MakeDirectories(const std::string& path) override;
  absl::Status Remove(const std::string& path) override;
  // False where the host is not reached.
  bool Exists(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override;

 private:
  class Link;
  explicit RemoteFiles(std::shared_ptr<Link> link);
  std::shared_ptr<Link> link_;  // Files share it.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_FILES_REMOTE_FILES_H_
