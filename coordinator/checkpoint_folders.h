// Where the checkpoints of a job lie whose hosts share no folder: every host
// keeps what its ranks write in a folder of its own, and a copy of what the
// next host's ranks write. Which hosts share a folder after all is found out.

#ifndef MILLRACE_COORDINATOR_CHECKPOINT_FOLDERS_H_
#define MILLRACE_COORDINATOR_CHECKPOINT_FOLDERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/protocol/millrace.pb.h"
#include "fault/spread_files.h"

namespace millrace {

// An agent of the job.
struct FolderCandidate {
  int32_t agent_idx;
  protocol::FileHost host;    // Its file server.
  bool sees_folder_of_first;  // Of the first candidate's host.
};

struct CheckpointFolders {
  // Those that differ, the coordinator's host's first. One: all share it.
  std::vector<protocol::FileHost> hosts;
  std::map<int32_t, int32_t> of_agent;  // By agent: an index of `hosts`.
  // For the coordinator, which is on the first host: changes are made in all
  // folders, files are read from whichever has them. Null if nothing was found.
  std::shared_ptr<SpreadFiles> files;
  // Changes this host's disk alone.
  std::shared_ptr<SpreadFiles> readers;
};

struct FolderSearch {
  std::vector<FolderCandidate> candidates;  // That of this host first.
  std::string directory;                    // On this host.
  std::string secret;
  std::string probe;  // The beginning of names for this to write and remove.
  int64_t term = 0;   // The coordinator's, as in RemoteFilesOptions.
};

// Makes the folder on every host that has none. Errors name the host:
// Unavailable if it is not reached, PermissionDenied, ResourceExhausted or
// Internal if it cannot write there.
absl::StatusOr<CheckpointFolders> FindCheckpointFolders(
    const FolderSearch& search);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CHECKPOINT_FOLDERS_H_
