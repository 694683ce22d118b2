// The folder of checkpoints as a worker sees it in a generation: one that all
// hosts share, or its own host's, with copies on the next host and the parts of
// others on theirs.

#ifndef MILLRACE_WORKER_AGENT_CHECKPOINT_FOLDER_H_
#define MILLRACE_WORKER_AGENT_CHECKPOINT_FOLDER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/files/remote_files.h"
#include "coordinator/objects/stored_files.h"
#include "coordinator/protocol/millrace.pb.h"
#include "fault/checkpoint.h"
#include "fault/file_system.h"
#include "fault/spread_files.h"
#include "worker/agent/worker_process.h"

namespace millrace {

class CheckpointFolder {
 public:
  // Connects to nobody yet. Errors are those of RemoteFiles::Create() and
  // ParseJob().
  static absl::StatusOr<std::unique_ptr<CheckpointFolder>> Open(
      const protocol::StartGeneration& generation,
      const WorkerOptions& options);

  // Empty: no checkpoints can be written.
  const std::string& directory() const { return directory_; }
  const std::shared_ptr<FileSystem>& files() const { return files_; }
  const PartPlacement& placement() const { return placement_; }
  // Where files() has the checkpoint that the coordinator calls `path`.
  std::string PathOf(const std::string& path) const;

  // A line for each damaged copy that another host's copy stood in for, since
  // the last call.
  std::vector<std::string> TakeDamagedCopies();

  // Ends calls to other hosts and to a bucket that are under way, and all later
  // ones.
  void Abort();

 private:
  CheckpointFolder() = default;
  std::string directory_;
  std::string of_coordinator_;  // Its name for the folder.
  std::shared_ptr<FileSystem> files_;
  std::shared_ptr<StoredFiles> stored_;  // files_ in a shared folder or bucket.
  std::shared_ptr<SpreadFiles> spread_;  // files_, or null in a shared folder.
  std::vector<std::shared_ptr<RemoteFiles>> remote_;
  PartPlacement placement_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_CHECKPOINT_FOLDER_H_
