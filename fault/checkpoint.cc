#include "fault/checkpoint.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "fault/checkpoint_files.h"
#include "fault/manifest.h"
#include "fault/safetensors.h"

namespace millrace {
namespace {

std::string StepName(int64_t step) {
  return absl::StrFormat("step-%08d", step);
}

// The step a folder is named after; negative if it is no checkpoint's folder.
int64_t StepOfName(const std::string& name) {
  int64_t step = -1;
  const absl::string_view digits = absl::string_view(name).substr(
      std::min(name.size(), sizeof("step-") - 1));
  const bool is_step = absl::StartsWith(name, "step-") &&
                       absl::SimpleAtoi(digits, &step) && step >= 0 &&
                       name == StepName(step);
  return is_step ? step : -1;
}

// A name that no file has yet: whatever an older save of the same step left,
// committed or not, is never written over. Listing tells a store that is not
// reached from one without the file, which Exists() does not.
absl::StatusOr<std::string> FreePartName(FileSystem& files,
                                         const std::string& folder,
                                         const CheckpointInfo& info, Rank rank,
                                         const PartPlacement& placement) {
  absl::StatusOr<std::vector<std::string>> taken = files.List(folder);
  if (absl::IsNotFound(taken.status())) taken.emplace();
  RETURN_IF_ERROR(taken.status());
  const std::string stem =
      absl::StrFormat("rank-%05d.g%d%s%s", ToInt(rank), ToInt(info.generation),
                      placement.run.empty() ? "" : ".", placement.run);
  std::string name = absl::StrCat(stem, ".safetensors");
  for (int i = 1; std::count(taken->begin(), taken->end(), name) > 0; ++i) {
    name = absl::StrCat(stem, "-", i, ".safetensors");
  }
  return name;
}

// "lm_head.weight|0:128,0:64|0:4096": unique in a file, and readable.
std::string PieceName(const StatePiece& piece) {
  const ParameterBox& box = piece.box;
  return absl::StrCat(piece.tensor, "|", box.row_begin, ":", box.row_end, ",",
                      box.col_begin, ":", box.col_end, "|", piece.begin, ":",
                      piece.end);
}

struct Chunk {
  const float* data;
  int64_t num_elements;
  uint64_t checksum() const {
    return Checksum(data, num_elements * static_cast<int64_t>(sizeof(float)));
  }
};

std::vector<Chunk> ChunksOf(const StatePiece& piece) {
  constexpr int64_t kChunkElements = kChunkBytes / sizeof(float);
  const int64_t num_elements = piece.end - piece.begin;
  std::vector<Chunk> chunks;
  for (int64_t begin = 0; begin < num_elements; begin += kChunkElements) {
    chunks.push_back(
        {.data = piece.data + begin,
         .num_elements = std::min(kChunkElements, num_elements - begin)});
  }
  return chunks;
}

absl::Status AppendPiece(SafetensorsWriter& writer, const StatePiece& piece,
                         ManifestPiece& entry) {
  for (const Chunk& chunk : ChunksOf(piece)) {
    entry.checksums.push_back(chunk.checksum());
    RETURN_IF_ERROR(writer.Append(chunk.data, chunk.num_elements));
  }
  return absl::OkStatus();
}

// Writes the file and fills in what its entry says of the content.
absl::Status WritePartFile(FileSystem& files, const std::string& path,
                           const CheckpointInfo& info,
                           const std::vector<StatePiece>& pieces,
                           ManifestFile& entry) {
  std::vector<SafetensorsTensor> tensors;
  for (const StatePiece& piece : pieces) {
    tensors.push_back({PieceName(piece), {piece.end - piece.begin}});
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(
                       files, path, std::move(tensors),
                       {{"format", "millrace-checkpoint-part"},
                        {"step", absl::StrCat(info.step)},
                        {"generation", absl::StrCat(ToInt(info.generation))}}));
  entry.header_bytes = static_cast<int64_t>(writer.header().size());
  entry.header_checksum = Checksum(writer.header().data(), entry.header_bytes);
  entry.bytes = entry.header_bytes;
  for (const StatePiece& piece : pieces) {
    const TensorShape shape = {piece.rows, piece.cols, piece.is_vector};
    entry.shapes.emplace(piece.tensor, shape);
    ManifestPiece manifest_piece = {
        .tensor = piece.tensor,
        .run = {.box = piece.box, .begin = piece.begin, .end = piece.end},
        .offset = entry.bytes};
    RETURN_IF_ERROR(AppendPiece(writer, piece, manifest_piece));
    entry.bytes += manifest_piece.bytes();
    entry.pieces.push_back(std::move(manifest_piece));
  }
  return writer.Finish();
}

absl::Status WriteDurably(FileSystem& files, const std::string& path,
                          const std::string& text) {
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.Create(path));
  RETURN_IF_ERROR(file->Append(text.data(), static_cast<int64_t>(text.size())));
  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::Status CheckPartIsThere(FileSystem& files, const std::string& folder,
                              const ManifestFile& part) {
  const std::string path = JoinPath(folder, part.name);
  const auto file = files.Open(path);
  if (!file.ok()) {
    return absl::Status(
        file.status().code(),
        absl::StrCat(file.status().message(), "; rank ", ToInt(part.rank),
                     " wrote it. checkpoint.directory must be a folder that "
                     "all nodes share."));
  }
  if ((*file)->size() != part.bytes) {
    return absl::DataLossError(absl::StrCat(
        path, " has ", (*file)->size(), " bytes, its rank wrote ", part.bytes));
  }
  return absl::OkStatus();
}

// Takes a committed checkpoint away. Its manifest goes first and for good, so
// that a crash on the way leaves remains, not a checkpoint with holes.
absl::Status RemoveCheckpoint(FileSystem& files, const std::string& folder) {
  RETURN_IF_ERROR(files.Remove(ManifestPath(folder)));
  const absl::Status synced = files.SyncDirectory(folder);
  // A host that was away does not have it.
  if (!absl::IsNotFound(synced)) RETURN_IF_ERROR(synced);
  return files.Remove(folder);
}

// Files of `folder` that its manifest does not name: parts of older generations
// and of saves that crashed.
absl::Status RemoveUnnamedFiles(FileSystem& files, const std::string& folder,
                                const Manifest& manifest) {
  std::set<std::string> names = {kManifestName};
  for (const ManifestFile& file : manifest.files) names.insert(file.name);
  ASSIGN_OR_RETURN(const std::vector<std::string> found, files.List(folder));
  for (const std::string& name : found) {
    if (names.contains(name)) continue;
    RETURN_IF_ERROR(files.Remove(JoinPath(folder, name)));
  }
  return absl::OkStatus();
}

absl::Status RemoveOldCheckpoints(FileSystem& files,
                                  const std::string& directory,
                                  const Manifest& manifest, int32_t keep) {
  const int64_t newest = manifest.info.step;
  // A folder that cannot be removed, such as a damaged one, does not keep the
  // others.
  absl::Status first = RemoveUnnamedFiles(
      files, JoinPath(directory, StepName(newest)), manifest);
  ASSIGN_OR_RETURN(std::vector<std::string> names, files.List(directory));
  // Newest first. Later steps belong to a history that was rolled back or to
  // another run; they are not this run's to delete.
  std::reverse(names.begin(), names.end());
  int32_t num_kept = 1;
  for (const std::string& name : names) {
    // A host that is gone would be waited for with every call.
    if (absl::IsUnavailable(first)) break;
    const int64_t step = StepOfName(name);
    if (step < 0 || step >= newest) continue;
    const std::string folder = JoinPath(directory, name);
    absl::Status removed;
    if (!files.Exists(ManifestPath(folder))) {
      removed = files.Remove(folder);
    } else if (++num_kept > keep) {
      removed = RemoveCheckpoint(files, folder);
    }
    if (first.ok()) first = removed;
  }
  return first;
}

// Makes the step's folder itself findable after a crash: any folder above it
// may be new, and a process that made one may have died before syncing it.
absl::Status SyncFolders(FileSystem& files, const std::string& directory) {
  for (std::string folder = directory;; folder = ParentPath(folder)) {
    const absl::Status status = files.SyncDirectory(folder);
    // A folder that may not be opened was not made by this run.
    if (absl::IsPermissionDenied(status)) return absl::OkStatus();
    RETURN_IF_ERROR(status);
    if (folder == ParentPath(folder)) return absl::OkStatus();
  }
}

// The rename is the commit.
absl::Status PlaceManifest(FileSystem& files, const std::string& folder,
                           const std::string& text,
                           const std::function<absl::Status()>& may_commit) {
  const std::string path = ManifestPath(folder);
  const std::string temporary = absl::StrCat(path, ".tmp");
  absl::Status status = WriteDurably(files, temporary, text);
  if (status.ok() && may_commit != nullptr) status = may_commit();
  if (status.ok()) status = files.Rename(temporary, path);
  if (!status.ok()) {
    // Best effort: a leftover is never read, and the next commit removes it.
    files.Remove(temporary).IgnoreError();
    return status;
  }
  return files.SyncDirectory(folder);
}

}  // namespace

std::string JoinPath(const std::string& folder, const std::string& name) {
  return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
}

std::string ManifestPath(const std::string& folder) {
  return JoinPath(folder, kManifestName);
}

std::string ParentPath(const std::string& path) {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  const size_t slash = trimmed.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : trimmed.substr(0, slash);
}

absl::StatusOr<std::string> WriteCheckpointPart(
    FileSystem& files, const std::string& directory, const CheckpointInfo& info,
    Rank rank, const std::vector<StatePiece>& pieces,
    const PartPlacement& placement) {
  const std::string folder = JoinPath(directory, StepName(info.step));
  RETURN_IF_ERROR(files.MakeDirectories(folder));
  const std::vector<StatePiece> owned = OwnedPieces(pieces);
  ASSIGN_OR_RETURN(const std::string name,
                   FreePartName(files, folder, info, rank, placement));
  ManifestFile entry = {.name = name,
                        .rank = rank,
                        .step = info.step,
                        .generation = info.generation,
                        .hosts = placement.hosts};
  const std::string path = JoinPath(folder, entry.name);
  absl::Status status = WritePartFile(files, path, info, owned, entry);
  if (status.ok()) status = files.SyncDirectory(folder);
  if (!status.ok()) {
    // Gives the space back; a leftover is harmless and removed by a later
    // commit, so the first error is the one to tell.
    files.Remove(path).IgnoreError();
    return status;
  }
  return EncodePart(entry);
}

std::vector<std::vector<uint64_t>> ChecksumsOf(
    const std::vector<StatePiece>& pieces) {
  std::vector<std::vector<uint64_t>> checksums;
  for (const StatePiece& piece : pieces) {
    std::vector<uint64_t>& of_piece = checksums.emplace_back();
    for (const Chunk& chunk : ChunksOf(piece)) {
      of_piece.push_back(chunk.checksum());
    }
  }
  return checksums;
}

bool IsPartOf(const std::string& entry,
              const std::vector<std::vector<uint64_t>>& checksums) {
  const absl::StatusOr<ManifestFile> part = ParsePart(entry);
  return part.ok() && std::equal(part->pieces.begin(), part->pieces.end(),
                                 checksums.begin(), checksums.end(),
                                 [](const ManifestPiece& piece,
                                    const std::vector<uint64_t>& expected) {
                                   return piece.checksums == expected;
                                 });
}

absl::Status CommitCheckpoint(FileSystem& files, const std::string& directory,
                              const CheckpointInfo& info,
                              const std::vector<std::string>& parts,
                              int32_t keep,
                              const std::function<absl::Status()>& may_commit,
                              bool above_is_durable) {
  std::vector<ManifestFile> entries;
  for (const std::string& part : parts) {
    ASSIGN_OR_RETURN(ManifestFile entry, ParsePart(part));
    entries.push_back(std::move(entry));
  }
  ASSIGN_OR_RETURN(const Manifest manifest,
                   JoinParts(info, std::move(entries)));
  if (manifest.shapes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a checkpoint of step ", info.step, " with no tensors"));
  }
  const std::string folder = JoinPath(directory, StepName(info.step));
  for (const ManifestFile& entry : manifest.files) {
    // One of several hosts' own disks is durable, or its rank had not reported.
    if (!entry.hosts.empty()) continue;
    RETURN_IF_ERROR(CheckPartIsThere(files, folder, entry));
  }
  const std::string text = EncodeManifest(manifest);
  if (static_cast<int64_t>(text.size()) > kMaxManifestBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the manifest of step ", info.step, " would have ", text.size(),
        " bytes, ", kMaxManifestBytes, " at most can be read back"));
  }
  // Hosts whose devices are idle have written no part.
  RETURN_IF_ERROR(files.MakeDirectories(folder));
  RETURN_IF_ERROR(above_is_durable ? files.SyncDirectory(directory)
                                   : SyncFolders(files, directory));
  RETURN_IF_ERROR(PlaceManifest(files, folder, text, may_commit));
  // The checkpoint is committed whatever comes of the cleaning up; what stays
  // behind, the next commit removes.
  RemoveOldCheckpoints(files, directory, manifest, std::max(keep, 1))
      .IgnoreError();
  return absl::OkStatus();
}

absl::Status RemoveUncommitted(FileSystem& files, const std::string& directory,
                               int64_t after, int64_t before) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  for (const std::string& name : names) {
    const int64_t step = StepOfName(name);
    const std::string folder = JoinPath(directory, name);
    if (step <= after || step >= before || files.Exists(ManifestPath(folder))) {
      continue;
    }
    RETURN_IF_ERROR(files.Remove(folder));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(
    FileSystem& files, const std::string& directory) {
  std::vector<CheckpointEntry> entries;
  if (!files.Exists(directory)) return entries;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  for (const std::string& name : names) {
    const int64_t step = StepOfName(name);
    const std::string folder = JoinPath(directory, name);
    if (step < 0 || !files.Exists(ManifestPath(folder))) continue;
    entries.push_back({.path = folder, .step = step});
  }
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) {
              return a.step > b.step;
            });
  return entries;
}

}  // namespace millrace
