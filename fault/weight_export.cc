#include "fault/weight_export.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "fault/checkpoint_files.h"
#include "fault/manifest.h"
#include "fault/safetensors.h"
#include "fault/weight_folder.h"

namespace millrace {
namespace {

// A tensor is written in runs of so many elements, so that memory does not grow
// with it: whole chunks of a checkpoint, read by several threads.
constexpr int64_t kRunElements =
    16 * kChunkBytes / static_cast<int64_t>(sizeof(float));

// "model.layers.10.x" behind "model.layers.2.x", as people count layers.
std::vector<std::pair<std::string, int64_t>> CountingOrder(
    const std::string& name) {
  std::vector<std::pair<std::string, int64_t>> words;
  for (const absl::string_view word : absl::StrSplit(name, '.')) {
    int64_t number = 0;
    const bool is_number = absl::SimpleAtoi(word, &number);
    words.emplace_back(is_number ? "" : std::string(word), number);
  }
  return words;
}

void SortByName(std::vector<SafetensorsTensor>& tensors) {
  std::ranges::stable_sort(tensors, {}, [](const SafetensorsTensor& tensor) {
    return CountingOrder(tensor.name);
  });
}

std::vector<SafetensorsTensor> TensorsOf(const Manifest& manifest,
                                         ElementType type) {
  std::vector<SafetensorsTensor> tensors;
  for (const auto& [name, shape] : manifest.shapes) {
    if (IsOptimizerState(name)) continue;
    SafetensorsTensor tensor = {.name = name, .type = type};
    if (!shape.is_vector) tensor.shape.push_back(shape.rows);
    tensor.shape.push_back(shape.cols);
    tensors.push_back(std::move(tensor));
  }
  SortByName(tensors);
  return tensors;
}

absl::Status AppendTensor(FileSystem& files, const WeightExport& what,
                          const Manifest& manifest, const std::string& name,
                          SafetensorsWriter& writer) {
  const TensorShape& shape = manifest.shapes.at(name);
  std::vector<float> values;
  for (int64_t begin = 0; begin < shape.num_elements(); begin += kRunElements) {
    if (what.cancelled != nullptr && *what.cancelled) {
      return absl::CancelledError("the export was given up");
    }
    const int64_t end = std::min(begin + kRunElements, shape.num_elements());
    values.resize(static_cast<size_t>(end - begin));
    const StatePiece run = {.tensor = name,
                            .rows = shape.rows,
                            .cols = shape.cols,
                            .is_vector = shape.is_vector,
                            .box = {0, shape.rows, 0, shape.cols},
                            .begin = begin,
                            .end = end,
                            .data = values.data(),
                            .is_owner = false};
    RETURN_IF_ERROR(LoadPieces(files, what.checkpoint, manifest, {run}));
    RETURN_IF_ERROR(writer.Append(values.data(), end - begin));
  }
  return absl::OkStatus();
}

using AppendElements = decltype(WeightFolderContent::append);

// Appends tensors of the checkpoint. What it is given must outlive it.
AppendElements AppendOf(FileSystem& files, const WeightExport& what,
                        const Manifest& manifest) {
  return [&files, &what, &manifest](const SafetensorsTensor& tensor,
                                    SafetensorsWriter& writer) {
    return AppendTensor(files, what, manifest, tensor.name, writer);
  };
}

absl::Status WriteTensors(FileSystem& files, const AppendElements& append,
                          const std::vector<SafetensorsTensor>& tensors,
                          const std::string& path) {
  // "pt" is what readers of Hugging Face's checkpoints insist on.
  ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(files, path, tensors, {{"format", "pt"}}));
  for (const SafetensorsTensor& tensor : tensors) {
    RETURN_IF_ERROR(append(tensor, writer));
  }
  return writer.Finish();
}

absl::Status WriteText(FileSystem& files, const std::string& path,
                       const std::string& text) {
  ASSIGN_OR_RETURN(const auto file, files.Create(path));
  RETURN_IF_ERROR(file->Append(text.data(), static_cast<int64_t>(text.size())));
  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

std::vector<std::vector<SafetensorsTensor>> CutIntoShards(
    std::vector<SafetensorsTensor> tensors, int64_t max_bytes) {
  std::vector<std::vector<SafetensorsTensor>> shards;
  int64_t bytes = 0;
  for (SafetensorsTensor& tensor : tensors) {
    if (shards.empty() || bytes + tensor.num_bytes() > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.num_bytes();
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

absl::Status WriteShards(FileSystem& files, const WeightFolderContent& what,
                         const std::string& folder) {
  std::vector<SafetensorsTensor> tensors = what.tensors;
  SortByName(tensors);
  const auto shards = CutIntoShards(std::move(tensors), what.max_shard_bytes);
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  int64_t num_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? std::string(kWeightFile)
                           : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                             i + 1, shards.size());
    RETURN_IF_ERROR(
        WriteTensors(files, what.append, shards[i], JoinPath(folder, name)));
    for (const SafetensorsTensor& tensor : shards[i]) {
      // Names are not looked up, which takes quadratic time.
      map.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(tensor.name,
                                                                    name);
      num_bytes += tensor.num_bytes();
    }
  }
  if (shards.size() > 1) {
    const nlohmann::ordered_json index = {
        {"metadata", {{"total_size", num_bytes}}},
        {"weight_map", std::move(map)}};
    RETURN_IF_ERROR(WriteText(files, JoinPath(folder, kWeightIndex),
                              absl::StrCat(JsonText(index, 2), "\n")));
  }
  for (const auto& [name, content] : what.other_files) {
    RETURN_IF_ERROR(WriteText(files, JoinPath(folder, name), content));
  }
  return files.SyncDirectory(folder);
}

std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

absl::Status ExportWeightFile(FileSystem& files, const WeightExport& what,
                              const std::string& output_path) {
  ASSIGN_OR_RETURN(const Manifest manifest,
                   ReadManifest(files, what.checkpoint));
  const std::string temporary = absl::StrCat(output_path, ".tmp");
  absl::Status status = WriteTensors(files, AppendOf(files, what, manifest),
                                     TensorsOf(manifest, what.type), temporary);
  if (status.ok()) status = files.Rename(temporary, output_path);
  if (!status.ok()) {
    files.Remove(temporary).IgnoreError();
    return status;
  }
  return files.SyncDirectory(ParentPath(output_path));
}

absl::Status WriteWeightFolder(FileSystem& files,
                               const WeightFolderContent& content,
                               const std::string& output_folder) {
  const std::string folder = WithoutSlashes(output_folder);
  const std::string partial = absl::StrCat(folder, ".partial");
  if (files.Exists(folder)) {
    return absl::AlreadyExistsError(
        absl::StrCat(folder, " is there already; name another folder"));
  }
  if (files.Exists(partial)) {
    return absl::AlreadyExistsError(
        absl::StrCat(partial,
                     " is there already: another export is writing it, or one "
                     "was interrupted; then remove it"));
  }
  RETURN_IF_ERROR(files.MakeDirectories(partial));
  absl::Status status = WriteShards(files, content, partial);
  if (status.ok()) status = files.Rename(partial, folder);
  if (!status.ok()) {
    files.Remove(partial).IgnoreError();
    return status;
  }
  return files.SyncDirectory(ParentPath(folder));
}

absl::Status ExportWeightFolder(FileSystem& files, const WeightExport& what,
                                const std::string& output_folder) {
  ASSIGN_OR_RETURN(const Manifest manifest,
                   ReadManifest(files, what.checkpoint));
  return WriteWeightFolder(files,
                           {.tensors = TensorsOf(manifest, what.type),
                            .append = AppendOf(files, what, manifest),
                            .max_shard_bytes = what.max_shard_bytes,
                            .other_files = what.other_files},
                           output_folder);
}

}  // namespace millrace
