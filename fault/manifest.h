// The manifest of a checkpoint: which file holds which elements of which
// tensor, with checksums. JSON; docs/checkpoint.md fixes every key.

#ifndef MILLRACE_FAULT_MANIFEST_H_
#define MILLRACE_FAULT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"
#include "fault/checkpoint.h"
#include "fault/coverage.h"

namespace millrace {

// A piece has one checksum for each run of this many of its bytes; the last
// run may be shorter. Small enough that a reshard reads little it does not
// need, large enough that checksums are 0.0005 % of the data.
inline constexpr int64_t kChunkBytes = 4 * kMiB;

// The longest text of a manifest, far above what 100,000 ranks write.
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

struct TensorShape {
  int64_t rows;  // 1 for a vector.
  int64_t cols;
  bool is_vector;
  int64_t num_elements() const { return rows * cols; }
  friend bool operator==(const TensorShape&, const TensorShape&) = default;
};

struct ManifestPiece {
  std::string tensor;
  BoxRun run;
  int64_t offset;                   // Bytes from the start of the file.
  std::vector<uint64_t> checksums;  // XXH3-64 of each chunk.
  int64_t bytes() const {
    return (run.end - run.begin) * static_cast<int64_t>(sizeof(float));
  }
};

// One rank's file, and the entry it hands to the coordinator.
struct ManifestFile {
  std::string name;  // Inside the step's folder.
  Rank rank;
  int64_t step;
  Generation generation;
  int64_t bytes;
  int64_t header_bytes;  // The data starts here.
  uint64_t header_checksum;
  std::map<std::string, TensorShape> shapes;  // Shapes of the tensors in it.
  std::vector<ManifestPiece> pieces;          // Back to back, by offset.
  std::vector<std::string> hosts;  // Those on whose disks it was written; empty
                                   // for a folder that all see.
};

// " on node1 and node2", the hosts of a part; empty without any.
std::string PlacesText(const ManifestFile& file);

struct Manifest {
  CheckpointInfo info;
  std::map<std::string, TensorShape> shapes;
  std::vector<ManifestFile> files;
};

// True for the optimizer's moments of a parameter.
bool IsOptimizerState(const std::string& tensor);

uint64_t Checksum(const void* data, int64_t num_bytes);

std::string EncodePart(const ManifestFile& file);
// InvalidArgument if `text` is not what EncodePart wrote.
absl::StatusOr<ManifestFile> ParsePart(absl::string_view text);

// Joins the ranks' entries. InvalidArgument if one belongs to another step or
// generation, two disagree on a shape, or they do not cover every element of
// every tensor exactly once.
absl::StatusOr<Manifest> JoinParts(const CheckpointInfo& info,
                                   std::vector<ManifestFile> files);

// The text ends with a checksum of all before it.
std::string EncodeManifest(const Manifest& manifest);
// `path` for messages. DataLoss if a byte differs from what was written;
// InvalidArgument if the format is of another version.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text,
                                       const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_FAULT_MANIFEST_H_
