// Paths and manifests of checkpoints, shared by what writes and what reads
// them.

#ifndef MILLRACE_FAULT_CHECKPOINT_FILES_H_
#define MILLRACE_FAULT_CHECKPOINT_FILES_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fault/file_system.h"
#include "fault/load_target.h"
#include "fault/manifest.h"
#include "fault/training_state.h"

namespace millrace {

inline constexpr char kManifestName[] = "manifest.json";

std::string JoinPath(const std::string& folder, const std::string& name);
// The folder that holds `path`: "." for a bare name.
std::string ParentPath(const std::string& path);
// Returns the manifest's path for the checkpoint in the step's folder `folder`.
std::string ManifestPath(const std::string& folder);

// Reads and checks the manifest of the step's folder `path`. NotFound saying
// what a checkpoint is if there is none; DataLoss if it is damaged.
absl::StatusOr<Manifest> ReadManifest(FileSystem& files,
                                      const std::string& path);

// LoadCheckpoint() of the step's folder `folder`, whose manifest is known.
absl::Status LoadPieces(FileSystem& files, const std::string& folder,
                        const Manifest& manifest,
                        const std::vector<StatePiece>& pieces,
                        LoadTarget* target = nullptr,
                        const std::atomic<bool>* stop = nullptr);

}  // namespace millrace

#endif  // MILLRACE_FAULT_CHECKPOINT_FILES_H_
