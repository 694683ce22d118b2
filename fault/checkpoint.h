// Durable checkpoints: one safetensors file a rank plus a manifest, renamed
// into place last. A checkpoint is either whole and verified, or it does not
// exist. docs/checkpoint.md fixes the format.
//
//   DIRECTORY/step-00000100/rank-00003.g2.safetensors    generation 2
//   DIRECTORY/step-00000100/manifest.json                present = committed

#ifndef MILLRACE_FAULT_CHECKPOINT_H_
#define MILLRACE_FAULT_CHECKPOINT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "fault/file_system.h"
#include "fault/load_target.h"
#include "fault/training_state.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"

namespace millrace {

// The manifest's content besides the pieces.
struct CheckpointInfo {
  int64_t step = 0;  // Completed training steps.
  Generation generation{};
  uint64_t seed = 0;
  // Data cursor: samples consumed so far; the next step begins there.
  int64_t samples_consumed = 0;
  Layout layout;         // The writer's; any other layout may load it.
  std::string job_yaml;  // JobToYaml.
};

// Where a part lies whose checkpoint is spread over hosts' own disks.
struct PartPlacement {
  // Tells apart the parts of different runs; in the file's name. Empty: no part
  // of another run can have the name.
  std::string run;
  std::vector<std::string> hosts;  // Empty: in a folder that all hosts see.
};

// Writes the pieces this rank owns as one safetensors file and makes it
// durable. Returns the rank's entry for the manifest (a JSON object with file
// name, pieces and checksums). Nothing is committed yet.
absl::StatusOr<std::string> WriteCheckpointPart(
    FileSystem& files, const std::string& directory, const CheckpointInfo& info,
    Rank rank, const std::vector<StatePiece>& pieces,
    const PartPlacement& placement = {});

// Returns the XXH3-64 of each chunk of each piece (4 MiB, the last one
// shorter). A part of a checkpoint has the same ones of the pieces that it
// holds.
std::vector<std::vector<uint64_t>> ChecksumsOf(
    const std::vector<StatePiece>& pieces);

// Whether the part that `entry` describes has these checksums, which are
// ChecksumsOf() the rank's owned pieces before they were written. False if a
// bit of them flipped in memory in between. A flip between the checksum of a
// chunk and its write makes a damaged file, which is found when it is read.
bool IsPartOf(const std::string& entry,
              const std::vector<std::vector<uint64_t>>& checksums);

// Writes the manifest of all ranks' entries, makes it durable, renames it into
// place, then deletes the earlier committed checkpoints beyond `keep` (this one
// counts) and uncommitted remains of earlier steps. Later steps stay: they
// belong to a history that was rolled back, or to another run. Once the rename
// is durable the result is OK; what could not be deleted, the next commit
// deletes. Returns InvalidArgument if the parts do not cover every element of
// every tensor exactly once, or are of another step or generation.
//
// `may_commit`, if there is one, is called right before the rename, when all
// that can take long is done. Its error ends the commit, and is returned.
//
// `above_is_durable`: the folders above `directory` are known to survive a
// crash, as after an earlier commit by this process. Else all of them are
// synced, which takes long where others write much to the same disks.
absl::Status CommitCheckpoint(
    FileSystem& files, const std::string& directory, const CheckpointInfo& info,
    const std::vector<std::string>& parts, int32_t keep,
    const std::function<absl::Status()>& may_commit = nullptr,
    bool above_is_durable = false);

// Removes what was written of checkpoints of steps between `after` and
// `before`, both excluded, that were never committed. For commits that fail, as
// on a full disk: otherwise the remains would stay until a commit succeeds. The
// caller knows that none of these steps will be committed any more.
absl::Status RemoveUncommitted(FileSystem& files, const std::string& directory,
                               int64_t after, int64_t before);

struct CheckpointEntry {
  std::string path;  // The step's folder.
  int64_t step;
};
// Committed checkpoints, newest first. An absent directory has none.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(
    FileSystem& files, const std::string& directory);

// Reads the manifest; checks its own checksum. DataLoss if damaged.
absl::StatusOr<CheckpointInfo> ReadCheckpointInfo(FileSystem& files,
                                                  const std::string& path);

// Reads the manifest and looks that every part is there with its size, without
// reading it. DataLoss names what is missing.
absl::Status CheckParts(FileSystem& files, const std::string& path);

// Reads every byte and compares checksums, on several threads; DataLoss names
// file and piece. Where
// a folder is spread over several disks, a damaged copy of a part or of the
// manifest is passed over for a whole one, and `files` is told; so do all
// functions here that read.
absl::Status VerifyCheckpoint(FileSystem& files, const std::string& path);

// Verifies the checkpoint and then every copy of its parts. Damaged copies of
// which another is whole are told to `files` and no error.
absl::Status VerifyCopies(FileSystem& files, const std::string& path);

// InvalidArgument unless the checkpoint holds exactly the training state of
// `model`, by names and shapes. Reads the manifest only.
absl::Status CheckIsOfModel(FileSystem& files, const std::string& path,
                            const ModelSpec& model);

// The newest checkpoint that passes `check` (VerifyCheckpoint or CheckParts),
// and is of `model` if one is given; NotFound if there is none. Others are
// passed over and described in `skipped` (may be null).
absl::StatusOr<CheckpointEntry> FindNewestCheckpoint(
    FileSystem& files, const std::string& directory,
    std::vector<std::string>* skipped, const ModelSpec* model = nullptr,
    absl::Status (*check)(FileSystem& files,
                          const std::string& path) = VerifyCheckpoint);

// Fills every piece (owned or not) from the checkpoint, whatever layout wrote
// it. Checksums of what is read are verified. InvalidArgument if a tensor is
// missing or has another shape; then nothing has been changed. After any other
// error the pieces hold a mixture. With `target` the pieces lie in its memory,
// and are filled when this returns. Once `stop` is true, which may be null, no
// further chunk is begun, and the error is Aborted. No thread writes into the
// pieces after this has returned.
absl::StatusOr<CheckpointInfo> LoadCheckpoint(
    FileSystem& files, const std::string& path,
    const std::vector<StatePiece>& pieces, LoadTarget* target = nullptr,
    const std::atomic<bool>* stop = nullptr);

}  // namespace millrace

#endif  // MILLRACE_FAULT_CHECKPOINT_H_
