// Writing the parameters of a checkpoint, without the optimizer's state, as
// whole tensors under the names of a Hugging Face family. Any layout's
// checkpoint serves, and memory needed grows neither with the model nor with
// the files.

#ifndef MILLRACE_FAULT_WEIGHT_EXPORT_H_
#define MILLRACE_FAULT_WEIGHT_EXPORT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fault/element_type.h"
#include "fault/file_system.h"
#include "fault/safetensors.h"
#include "planner/frameworks/stored_names.h"

namespace millrace {

// The default of Transformers 4.
inline constexpr int64_t kMaxShardBytes = 5'000'000'000;

struct WeightExport {
  std::string checkpoint;  // The step's folder.
  ElementType type = ElementType::kBf16;
  // Bytes of tensors in one file of a folder; a larger tensor is a file alone.
  int64_t max_shard_bytes = kMaxShardBytes;
  // How a folder's files name tensors. A plain file names them as ours does.
  TensorNaming naming = TensorNaming::kPlain;
  // Further files that the folder gets: contents by name.
  std::map<std::string, std::string> other_files;
  // Where it is given and becomes true, the export ends with Cancelled.
  const std::atomic<bool>* cancelled = nullptr;
};

// Writes one plain safetensors file and renames it into place.
absl::Status ExportWeightFile(FileSystem& files, const WeightExport& what,
                              const std::string& output_path);

// A folder's tensors and how to get their elements.
struct WeightFolderContent {
  std::vector<SafetensorsTensor> tensors;
  // Appends all elements of the tensor.
  std::function<absl::Status(const SafetensorsTensor&, SafetensorsWriter&)>
      append;
  int64_t max_shard_bytes = kMaxShardBytes;
  std::map<std::string, std::string> other_files;
};

// Writes a folder that WeightFolder and Hugging Face's libraries read:
// model.safetensors, or shards and their index. It appears whole or not at all:
// it is written as FOLDER.partial, which is renamed last. AlreadyExists if
// either is there; nothing is overwritten.
absl::Status WriteWeightFolder(FileSystem& files,
                               const WeightFolderContent& content,
                               const std::string& output_folder);

// The same of a checkpoint.
absl::Status ExportWeightFolder(FileSystem& files, const WeightExport& what,
                                const std::string& output_folder);

}  // namespace millrace

#endif  // MILLRACE_FAULT_WEIGHT_EXPORT_H_
