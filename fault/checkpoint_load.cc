// Reading checkpoints: verify, load under any layout.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "fault/checkpoint.h"
#include "fault/checkpoint_files.h"
#include "fault/file_copies.h"
#include "fault/manifest.h"
#include "planner/program/parameters.h"

namespace millrace {
namespace {

constexpr int64_t kLoadedElementBytes = sizeof(float);
constexpr int64_t kChunkElements = kChunkBytes / kLoadedElementBytes;

absl::Status ChecksumMismatch(const std::string& path,
                              const std::string& piece) {
  return absl::DataLossError(
      absl::StrCat(path, ": ", piece,
                   " does not match its checksum; the file has been damaged. "
                   "Use an older checkpoint."));
}

absl::Status CheckSize(const RandomAccessFile& copy, const std::string& path,
                       const ManifestFile& part) {
  if (copy.size() == part.bytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path, " has ", copy.size(), " bytes, the manifest says ",
                   part.bytes, ". Use an older checkpoint."));
}

// Opens a part and checks its size against the manifest.
absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenPart(
    FileSystem& files, const std::string& path, const ManifestFile& part) {
  auto file = files.Open(path);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(
        absl::StrCat(path, " is missing, though the manifest names it. ",
                     part.hosts.empty()
                         ? "Use an older checkpoint."
                         : absl::StrCat("It was written", PlacesText(part),
                                        ": start the job with one of these "
                                        "hosts, or use an older checkpoint.")));
  }
  RETURN_IF_ERROR(file.status());
  const absl::Status size = CheckSize(**file, path, part);
  if (size.ok()) return file;
  RETURN_IF_ERROR(
      ReadAnotherCopy(files, path, size, [&](const RandomAccessFile& copy) {
        return CheckSize(copy, path, part);
      }));
  return file;  // Another copy is read from where this one ends.
}

// Bytes of a part that have one checksum.
struct CheckedBytes {
  std::string name;  // For messages: "tensor norm.weight, chunk 0".
  int64_t offset;
  int64_t num_bytes;
  uint64_t checksum;
};

CheckedBytes HeaderOf(const ManifestFile& part) {
  return {.name = "the header",
          .offset = 0,
          .num_bytes = part.header_bytes,
          .checksum = part.header_checksum};
}

// The chunk starts at element chunk_idx * kChunkElements of the piece.
CheckedBytes ChunkOf(const ManifestPiece& piece, int64_t chunk_idx) {
  const int64_t begin_byte = chunk_idx * kChunkBytes;
  return {.name = absl::StrCat("tensor ", piece.tensor, ", chunk ", chunk_idx),
          .offset = piece.offset + begin_byte,
          .num_bytes = std::min(kChunkBytes, piece.bytes() - begin_byte),
          .checksum = piece.checksums[chunk_idx]};
}

// The bytes that come after each other in one copy of a part.
absl::Status ReadBytes(const RandomAccessFile& copy, const std::string& path,
                       const CheckedBytes& bytes, float* out) {
  RETURN_IF_ERROR(copy.Read(bytes.offset, bytes.num_bytes, out));
  if (Checksum(out, bytes.num_bytes) == bytes.checksum) {
    return absl::OkStatus();
  }
  return ChecksumMismatch(path, bytes.name);
}

// Makes room in `buffer`, and returns it.
float* RoomFor(const CheckedBytes& bytes, std::vector<float>& buffer) {
  buffer.resize(static_cast<size_t>(
      (bytes.num_bytes + kLoadedElementBytes - 1) / kLoadedElementBytes));
  return buffer.data();
}

// The same, from another copy where those of `file` are damaged.
absl::Status ReadFromAnyCopy(FileSystem& files, const RandomAccessFile& file,
                             const std::string& path, const CheckedBytes& bytes,
                             float* out) {
  const auto read = [&](const RandomAccessFile& copy) {
    return ReadBytes(copy, path, bytes, out);
  };
  const absl::Status status = read(file);
  return status.ok() ? status : ReadAnotherCopy(files, path, status, read);
}

// Calls `read` with all bytes of the part, in order, until an error.
absl::Status ReadAll(
    const ManifestFile& part,
    absl::FunctionRef<absl::Status(const CheckedBytes& bytes)> read) {
  RETURN_IF_ERROR(read(HeaderOf(part)));
  for (const ManifestPiece& piece : part.pieces) {
    const auto num_chunks = static_cast<int64_t>(piece.checksums.size());
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      RETURN_IF_ERROR(read(ChunkOf(piece, chunk)));
    }
  }
  return absl::OkStatus();
}

// A part's bytes, for threads that share out several parts.
struct PartBytes {
  std::string path;
  std::unique_ptr<RandomAccessFile> file;
  std::vector<CheckedBytes> bytes;
};

// Parts that are open at the same time.
constexpr size_t kPartsAtOnce = 64;

absl::Status VerifySomeParts(FileSystem& files, const std::string& folder,
                             absl::Span<const ManifestFile> parts) {
  std::vector<PartBytes> opened;
  std::vector<std::pair<size_t, size_t>> order;  // Part, and bytes in it.
  for (const ManifestFile& part : parts) {
    PartBytes& of_part = opened.emplace_back();
    of_part.path = JoinPath(folder, part.name);
    ASSIGN_OR_RETURN(of_part.file, OpenPart(files, of_part.path, part));
    RETURN_IF_ERROR(ReadAll(part, [&](const CheckedBytes& bytes) {
      order.emplace_back(opened.size() - 1, of_part.bytes.size());
      of_part.bytes.push_back(bytes);
      return absl::OkStatus();
    }));
  }
  return ParallelFor(static_cast<int64_t>(order.size()), NumCopyThreads(),
                     [&](int64_t i) {
                       thread_local std::vector<float> buffer;
                       const PartBytes& part = opened[order[i].first];
                       const CheckedBytes& bytes = part.bytes[order[i].second];
                       return ReadFromAnyCopy(files, *part.file, part.path,
                                              bytes, RoomFor(bytes, buffer));
                     });
}

absl::Status VerifyParts(FileSystem& files, const std::string& folder,
                         absl::Span<const ManifestFile> parts) {
  for (; !parts.empty();
       parts.remove_prefix(std::min(kPartsAtOnce, parts.size()))) {
    RETURN_IF_ERROR(
        VerifySomeParts(files, folder, parts.subspan(0, kPartsAtOnce)));
  }
  return absl::OkStatus();
}

// Reads every copy of a part that is whole, also those that no reader needs.
absl::Status VerifyCopiesOfPart(FileSystem& files, const std::string& path,
                                const ManifestFile& part) {
  ASSIGN_OR_RETURN(const std::vector<FileCopy> copies, files.OpenCopies(path));
  if (copies.size() < 2) return absl::OkStatus();
  std::vector<DamagedCopy> damaged;
  std::string whole_host;
  std::vector<float> buffer;
  for (const FileCopy& copy : copies) {
    absl::Status status = CheckSize(*copy.file, path, part);
    if (status.ok()) {
      status = ReadAll(part, [&](const CheckedBytes& bytes) {
        return ReadBytes(*copy.file, path, bytes, RoomFor(bytes, buffer));
      });
    }
    if (status.ok()) {
      whole_host = copy.host;
    } else {
      damaged.push_back({.path = path,
                         .host = copy.host,
                         .reason = std::string(status.message())});
    }
  }
  for (DamagedCopy& copy : damaged) {
    copy.used_host = whole_host.empty() ? "another host" : whole_host;
    files.OnDamagedCopy(copy);
  }
  return absl::OkStatus();
}

// The part of one tensor that a caller wants, and how much of it must be
// filled.
struct WantedPiece {
  const StatePiece* piece;
  int64_t num_filled = 0;
};

// Elements [begin, end) of `stored.box`, by their rows in the tensor.
int64_t FirstRow(const BoxRun& run) {
  return run.box.row_begin + run.begin / (run.box.col_end - run.box.col_begin);
}
int64_t EndRow(const BoxRun& run) {
  const int64_t width = run.box.col_end - run.box.col_begin;
  return run.box.row_begin + (run.end + width - 1) / width;
}

// Calls copy(to, from, count) for what the stored run and the wanted piece
// share, row segment by row segment: elements of the piece's data from `to` on,
// of the run's from `from` on. Returns the number of elements.
int64_t ForEachShared(
    const BoxRun& stored, const StatePiece& piece,
    absl::FunctionRef<void(int64_t to, int64_t from, int64_t count)> copy) {
  const BoxRun wanted = {piece.box, piece.begin, piece.end};
  if (stored.begin == stored.end || wanted.begin == wanted.end) return 0;
  const int64_t row_begin = std::max(FirstRow(stored), FirstRow(wanted));
  const int64_t row_end = std::min(EndRow(stored), EndRow(wanted));
  const int64_t col_begin =
      std::max(stored.box.col_begin, wanted.box.col_begin);
  const int64_t col_end = std::min(stored.box.col_end, wanted.box.col_end);
  const int64_t stored_width = stored.box.col_end - stored.box.col_begin;
  const int64_t wanted_width = wanted.box.col_end - wanted.box.col_begin;
  if (row_begin >= row_end || col_begin >= col_end) return 0;
  // Where both boxes are as wide as the overlap, its rows lie back to back on
  // both sides and are one segment.
  const int64_t width = col_end - col_begin;
  const bool one_segment = width == stored_width && width == wanted_width;
  const int64_t segment = one_segment ? width * (row_end - row_begin) : width;
  const int64_t row_stride = one_segment ? row_end - row_begin : 1;

  int64_t num_copied = 0;
  for (int64_t row = row_begin; row < row_end; row += row_stride) {
    const int64_t from = (row - stored.box.row_begin) * stored_width +
                         col_begin - stored.box.col_begin;
    const int64_t to = (row - wanted.box.row_begin) * wanted_width + col_begin -
                       wanted.box.col_begin;
    // The part of the segment that lies in both runs.
    const int64_t begin =
        std::max({int64_t{0}, stored.begin - from, wanted.begin - to});
    const int64_t end = std::min({segment, stored.end - from, wanted.end - to});
    if (begin >= end) continue;
    copy(to + begin - wanted.begin, from + begin - stored.begin, end - begin);
    num_copied += end - begin;
  }
  return num_copied;
}

using WantedByTensor = std::map<std::string, std::vector<WantedPiece>>;

absl::Status CheckShape(const Manifest& manifest, const std::string& path,
                        const StatePiece& piece) {
  const auto shape = manifest.shapes.find(piece.tensor);
  if (shape == manifest.shapes.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " has no tensor ", piece.tensor,
        ". It is a checkpoint of another model; resume with the model that "
        "wrote it."));
  }
  const TensorShape& stored = shape->second;
  const TensorShape wanted = {piece.rows, piece.cols, piece.is_vector};
  if (!(stored == wanted)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": tensor ", piece.tensor, " is [", stored.rows, ", ",
        stored.cols, "], this job expects [", wanted.rows, ", ", wanted.cols,
        "]. Resume with the model that wrote the checkpoint."));
  }
  return absl::OkStatus();
}

// A chunk of a stored piece that some wanted piece has elements of.
struct ChunkToLoad {
  FileSystem* files;
  const RandomAccessFile* file;
  const std::string* path;
  const ManifestPiece* stored;
  const std::vector<WantedPiece>* wanted;  // The tensor's pieces.
  int64_t chunk_idx;

  BoxRun run() const {
    const int64_t begin = stored->run.begin + chunk_idx * kChunkElements;
    return {stored->run.box, begin,
            std::min(begin + kChunkElements, stored->run.end)};
  }
};

// The chunks to read. Each is read once, no matter how many pieces need it, and
// not at all if none does.
struct LoadList {
  std::vector<std::string> paths;  // By part; chunks point here.
  std::vector<std::unique_ptr<RandomAccessFile>> files;
  std::vector<ChunkToLoad> chunks;
};

absl::StatusOr<LoadList> ListChunks(FileSystem& files,
                                    const std::string& folder,
                                    const Manifest& manifest,
                                    WantedByTensor& wanted) {
  LoadList list;
  list.paths.reserve(manifest.files.size());
  for (const ManifestFile& part : manifest.files) {
    list.paths.push_back(JoinPath(folder, part.name));
    const RandomAccessFile* file = nullptr;  // Opened when first needed.
    const size_t num_before = list.chunks.size();
    for (const ManifestPiece& stored : part.pieces) {
      const auto wants = wanted.find(stored.tensor);
      if (wants == wanted.end()) continue;
      if (file == nullptr) {
        list.files.emplace_back();
        ASSIGN_OR_RETURN(list.files.back(),
                         OpenPart(files, list.paths.back(), part));
        file = list.files.back().get();
      }
      for (size_t i = 0; i < stored.checksums.size(); ++i) {
        const ChunkToLoad chunk = {.files = &files,
                                   .file = file,
                                   .path = &list.paths.back(),
                                   .stored = &stored,
                                   .wanted = &wants->second,
                                   .chunk_idx = static_cast<int64_t>(i)};
        int64_t num_shared = 0;
        for (WantedPiece& w : wants->second) {
          const int64_t shared = ForEachShared(
              chunk.run(), *w.piece, [](int64_t, int64_t, int64_t) {});
          w.num_filled += shared;
          num_shared += shared;
        }
        if (num_shared > 0) list.chunks.push_back(chunk);
      }
    }
    if (list.chunks.size() == num_before) continue;
    // Loading does without the header, but other readers of the file do not,
    // and a disk that has damaged it is not to be trusted.
    const CheckedBytes header = HeaderOf(part);
    std::vector<float> buffer;
    RETURN_IF_ERROR(ReadFromAnyCopy(files, *file, list.paths.back(), header,
                                    RoomFor(header, buffer)));
  }
  return list;
}

// Reads a chunk into `buffer` and calls copy(to, from, count) for each run of
// elements that a piece takes of it.
absl::Status LoadChunk(
    const ChunkToLoad& chunk, float* buffer,
    absl::FunctionRef<absl::Status(float*, const float*, int64_t)> copy) {
  RETURN_IF_ERROR(ReadFromAnyCopy(*chunk.files, *chunk.file, *chunk.path,
                                  ChunkOf(*chunk.stored, chunk.chunk_idx),
                                  buffer));
  absl::Status status;
  for (const WantedPiece& w : *chunk.wanted) {
    ForEachShared(chunk.run(), *w.piece,
                  [&](int64_t to, int64_t from, int64_t count) {
                    if (!status.ok()) return;
                    status = copy(w.piece->data + to, buffer + from, count);
                  });
  }
  return status;
}

absl::Status LoadToHost(const ChunkToLoad& chunk) {
  // Kept by each thread, since new memory for each chunk costs as much as
  // reading.
  thread_local std::vector<float> buffer;
  return LoadChunk(
      chunk, RoomFor(ChunkOf(*chunk.stored, chunk.chunk_idx), buffer),
      [](float* to, const float* from, int64_t count) {
        std::memcpy(to, from, static_cast<size_t>(count * kLoadedElementBytes));
        return absl::OkStatus();
      });
}

// The lanes of a target, one for each thread that loads at a time.
class Lanes {
 public:
  explicit Lanes(LoadTarget* target) : target_(*target) {}

  absl::Status Load(const ChunkToLoad& chunk) {
    std::unique_ptr<LoadTarget::Lane> lane;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        lane = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (lane == nullptr) {
      ASSIGN_OR_RETURN(lane, target_.OpenLane());
    }
    ASSIGN_OR_RETURN(float* const buffer, lane->Buffer());
    RETURN_IF_ERROR(LoadChunk(chunk, buffer,
                              [&](float* to, const float* from, int64_t count) {
                                return lane->Copy(to, from, count);
                              }));
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(lane));
    return absl::OkStatus();
  }

  absl::Status Finish() {
    for (const auto& lane : idle_) RETURN_IF_ERROR(lane->Finish());
    return absl::OkStatus();
  }

 private:
  LoadTarget& target_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<LoadTarget::Lane>> idle_;
};

}  // namespace

// One thread reads, compares and copies a few gigabytes a second, and a job
// that recovers waits for it; chunks share no elements, so several do.
absl::Status LoadPieces(FileSystem& files, const std::string& folder,
                        const Manifest& manifest,
                        const std::vector<StatePiece>& pieces,
                        LoadTarget* target, const std::atomic<bool>* stop) {
  WantedByTensor wanted;
  for (const StatePiece& piece : pieces) {
    RETURN_IF_ERROR(CheckShape(manifest, folder, piece));
    wanted[piece.tensor].push_back({.piece = &piece});
  }
  ASSIGN_OR_RETURN(const LoadList list,
                   ListChunks(files, folder, manifest, wanted));
  // The manifest covers every element once, so a piece is full exactly when
  // as many elements come in as it has.
  for (const auto& [tensor, wants] : wanted) {
    for (const WantedPiece& w : wants) {
      if (w.num_filled != w.piece->end - w.piece->begin) {
        return absl::InternalError(absl::StrCat(
            folder, ": tensor ", tensor, ": ", w.num_filled, " of ",
            w.piece->end - w.piece->begin, " elements were found"));
      }
    }
  }
  const auto num_chunks = static_cast<int64_t>(list.chunks.size());
  std::optional<Lanes> lanes;
  if (target != nullptr) lanes.emplace(target);
  const auto load = [&](int64_t i) -> absl::Status {
    if (stop != nullptr && *stop) {
      return absl::AbortedError(absl::StrCat(folder, ": loading was stopped"));
    }
    return lanes.has_value() ? lanes->Load(list.chunks[i])
                             : LoadToHost(list.chunks[i]);
  };
  RETURN_IF_ERROR(ParallelFor(num_chunks, NumCopyThreads(), load));
  return lanes.has_value() ? lanes->Finish() : absl::OkStatus();
}

absl::StatusOr<Manifest> ReadManifest(FileSystem& files,
                                      const std::string& path) {
  const std::string manifest_path = ManifestPath(path);
  auto file = files.Open(manifest_path);
  if (absl::IsNotFound(file.status())) {
    return absl::NotFoundError(absl::StrCat(
        path, " is not a checkpoint: it has no ", kManifestName,
        ". Name the folder of one step, such as checkpoints/step-00000100; "
        "without a manifest its save never finished."));
  }
  RETURN_IF_ERROR(file.status());
  Manifest manifest;
  const auto read = [&](const RandomAccessFile& copy) -> absl::Status {
    if (copy.size() > kMaxManifestBytes) {
      return absl::DataLossError(absl::StrCat(
          manifest_path, " has ", copy.size(), " bytes, a manifest has ",
          kMaxManifestBytes, " at most. Use another checkpoint."));
    }
    std::string text(static_cast<size_t>(copy.size()), '\0');
    RETURN_IF_ERROR(copy.Read(0, copy.size(), text.data()));
    ASSIGN_OR_RETURN(manifest, ParseManifest(text, manifest_path));
    return absl::OkStatus();
  };
  absl::Status status = read(**file);
  if (!status.ok()) {
    status = ReadAnotherCopy(files, manifest_path, status, read);
  }
  RETURN_IF_ERROR(status);
  return manifest;
}

absl::StatusOr<CheckpointInfo> ReadCheckpointInfo(FileSystem& files,
                                                  const std::string& path) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files, path));
  return std::move(manifest.info);
}

absl::Status CheckParts(FileSystem& files, const std::string& path) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(files, path));
  for (const ManifestFile& part : manifest.files) {
    RETURN_IF_ERROR(OpenPart(files, JoinPath(path, part.name), part).status());
  }
  return absl::OkStatus();
}

absl::Status VerifyCheckpoint(FileSystem& files, const std::string& path) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(files, path));
  return VerifyParts(files, path, manifest.files);
}

absl::Status VerifyCopies(FileSystem& files, const std::string& path) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(files, path));
  RETURN_IF_ERROR(VerifyParts(files, path, manifest.files));
  return ParallelFor(static_cast<int64_t>(manifest.files.size()),
                     NumCopyThreads(), [&](int64_t i) {
                       const ManifestFile& part = manifest.files[i];
                       return VerifyCopiesOfPart(
                           files, JoinPath(path, part.name), part);
                     });
}

absl::Status CheckIsOfModel(FileSystem& files, const std::string& path,
                            const ModelSpec& model) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(files, path));
  size_t num_known = 0;
  for (const Parameter& parameter : ModelParameters(model)) {
    for (const char* suffix : {"", ".exp_avg", ".exp_avg_sq"}) {
      const StatePiece whole = {.tensor = parameter.name + suffix,
                                .rows = parameter.rows,
                                .cols = parameter.cols,
                                .is_vector = parameter.is_vector};
      RETURN_IF_ERROR(CheckShape(manifest, path, whole));
      ++num_known;
    }
  }
  if (manifest.shapes.size() == num_known) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, " has ", manifest.shapes.size(), " tensors, this job's model ",
      num_known, ". Resume with the model that wrote the checkpoint."));
}

absl::StatusOr<CheckpointEntry> FindNewestCheckpoint(
    FileSystem& files, const std::string& directory,
    std::vector<std::string>* skipped, const ModelSpec* model,
    absl::Status (*check)(FileSystem& files, const std::string& path)) {
  ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                   ListCheckpoints(files, directory));
  for (const CheckpointEntry& entry : entries) {
    // First what a manifest tells: a forged one may name terabytes to read.
    absl::Status status = absl::OkStatus();
    if (model != nullptr) status = CheckIsOfModel(files, entry.path, *model);
    if (status.ok()) status = check(files, entry.path);
    if (status.ok()) return entry;
    if (skipped != nullptr) skipped->push_back(std::string(status.message()));
  }
  return absl::NotFoundError(
      entries.empty()
          ? absl::StrCat("no committed checkpoint in ", directory)
          : absl::StrCat("none of the ", entries.size(), " checkpoints in ",
                         directory, " is whole",
                         model == nullptr ? "" : " and of this job's model"));
}

absl::StatusOr<CheckpointInfo> LoadCheckpoint(
    FileSystem& files, const std::string& path,
    const std::vector<StatePiece>& pieces, LoadTarget* target,
    const std::atomic<bool>* stop) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files, path));
  RETURN_IF_ERROR(LoadPieces(files, path, manifest, pieces, target, stop));
  return std::move(manifest.info);
}

}  // namespace millrace
