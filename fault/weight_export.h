// Writing the parameters of a checkpoint, without the optimizer's state, as
// whole tensors under the names of a Hugging Face family. Any layout's
// checkpoint serves, and memory needed grows neither with the model nor with
// the files.

#ifndef MILLRACE_FAULT_WEIGHT_EXPORT_H_
#define MILLRACE_FAULT_WEIGHT_EXPORT_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "fault/element_type.h"
#include "fault/file_system.h"
#include "planner/frameworks/stored_names.h"

namespace millrace {

// What Transformers 4 takes where it is not told otherwise.
inline constexpr int64_t kMaxShardBytes = 5'000'000'000;

struct WeightExport {
  std::string checkpoint;  // The step's folder.
  ElementType type = ElementType::kBf16;
  // Bytes of tensors in one file of a folder; a larger tensor is a file alone.
  int64_t max_shard_bytes = kMaxShardBytes;
  // How a folder's files name tensors. A plain file names them as ours does.
  TensorNaming naming = TensorNaming::kPlain;
  // What the folder gets beside the weights: contents by name.
  std::map<std::string, std::string> other_files;
};

// Writes one plain safetensors file and renames it into place.
absl::Status ExportWeightFile(FileSystem& files, const WeightExport& what,
                              const std::string& output_path);

// Writes a folder that WeightFolder and Hugging Face's libraries read:
// model.safetensors, or shards and their index. It appears whole or not at all:
// it is written as FOLDER.partial, which is renamed last. AlreadyExists if
// either is there; nothing is overwritten.
absl::Status ExportWeightFolder(FileSystem& files, const WeightExport& what,
                                const std::string& output_folder);

}  // namespace millrace

#endif  // MILLRACE_FAULT_WEIGHT_EXPORT_H_
